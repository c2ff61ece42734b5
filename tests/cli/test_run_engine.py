"""``pasta run --engine``: a stock server decodes, and what is not exact must be allowed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pasta_lm.engines.servers.served_model import read_served
from pasta_lm.language.document import parse
from pasta_lm.models.folder import FILE_NAME
from tests.cli.conftest import Pasta
from tests.fakes.stock_server import StockTestServer
from tests.stock import playing

DOCUMENT = parse('Go<promise topic="one" tokens="1"/><async> 1 2</async> and<sync/> on')


@pytest.fixture
def server(taught_folder: Path) -> Iterator[StockTestServer]:
    """Return a server that decodes the document after the prompt "hello"."""
    served = read_served(taught_folder)
    prompt = served.vocabulary.encode_prompt([{"role": "user", "content": "hello"}])
    answer = served.vocabulary.encode_document(DOCUMENT)
    eos_id = min(served.eos_ids)
    with StockTestServer(playing(served.vocabulary, eos_id, (prompt, answer)), eos_id) as found:
        yield found


def test_an_exact_model_is_decoded_by_a_server(
    pasta: Pasta, taught_folder: Path, server: StockTestServer, tmp_path: Path
) -> None:
    folder = tmp_path / "continue"
    shutil.copytree(taught_folder, folder)
    (folder / "model.safetensors").unlink()  # no weights are read
    config = json.loads((folder / FILE_NAME).read_text())
    exact = {**config, "positions": "continue", "join": "recompute"}
    (folder / FILE_NAME).write_text(json.dumps(exact))
    result = pasta("run", "hello", "--model", folder, "--engine", server.url, "--json")
    assert result.code == 0, result.err
    assert result.json["program"] == DOCUMENT.program
    assert result.json["engine"] == "completions"


def test_what_is_not_exact_must_be_allowed(
    pasta: Pasta, taught_folder: Path, server: StockTestServer
) -> None:
    arguments = "run", "hello", "--model", taught_folder, "--engine", server.url
    refused = pasta(*arguments)
    assert refused.code == 3
    assert "positions 'predict' with join 'shared' are not exact" in refused.err
    assert "--allow-inexact" in refused.err
    allowed = pasta(*arguments, "--allow-inexact")
    assert (allowed.code, allowed.out) == (0, DOCUMENT.plain_text + "\n")
