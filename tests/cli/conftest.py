"""A command line to type, and tiny random models to name on it."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar

from pasta_lm.cli import main, terminal
from pasta_lm.interpreter.limits import Limits
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.models.folder import PastaConfig, save_model_folder
from pasta_lm.models.pieces import add_pieces
from tests.small_tokenizers import byte_level
from tests.tiny import TAG_SCALE, random_llama

PLAIN_CHAT = "{{ bos_token }}{% for one in messages %}{{ one['content'] }}{% endfor %}"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Pasta = Callable[..., Result]


@pytest.fixture
def pasta(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Pasta:
    return typing(main, monkeypatch, capsys)


def typing(
    command: Callable[[], object],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Pasta:
    """Return what types a command line; everything is piped, nothing is a terminal."""
    monkeypatch.setattr(terminal, "SECONDS_OF_SILENCE", 1e6)  # however slow the machine is
    # What it asks of the libraries would outlive the test, and comes too late for this process.
    monkeypatch.setattr("pasta_lm.cli.terminal.silence_libraries", lambda: None)
    disable_progress_bar()

    def typed(*arguments: object, stdin: str | None = "", **environment: str) -> Result:
        piped = io.TextIOWrapper(io.BytesIO((stdin or "").encode()))
        monkeypatch.setattr(sys, "argv", ["pasta", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", Terminal() if stdin is None else piped)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        code = 0
        try:
            command()
        except SystemExit as exit:
            code = exit.code if isinstance(exit.code, int) else int(exit.code is not None)
        return Result(code, *capsys.readouterr())

    return typed


def _model() -> tuple[LlamaForCausalLM, Any]:
    tokenizer = byte_level()
    tokenizer.chat_template = PLAIN_CHAT
    return random_llama(tokenizer), tokenizer


@pytest.fixture(scope="session")
def taught_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a model with tag pieces, which forks at random."""
    folder = tmp_path_factory.mktemp("models") / "taught"
    model, tokenizer = _model()
    pieces = add_pieces(model, tokenizer)
    with torch.no_grad():
        model.get_output_embeddings().weight[sorted(pieces.values())] *= TAG_SCALE
    config = PastaConfig(piece_ids=pieces, positions=PositionStrategy.PREDICT, limits=Limits())
    save_model_folder(model, tokenizer, folder, config)
    return folder


@pytest.fixture(scope="session")
def untaught_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "untaught"
    model, tokenizer = _model()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
