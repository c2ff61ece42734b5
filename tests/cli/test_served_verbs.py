"""``--engine`` of the verbs: what decodes on servers, and what says why it cannot."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
from openai import OpenAI

from pasta_lm.engines.servers.completions import read_served
from pasta_lm.language.document import parse
from pasta_lm.models.folder import FILE_NAME
from tests.cli.conftest import Pasta
from tests.cli.test_annotate import write_recipe
from tests.fakes.scripted_server import ScriptedServer
from tests.fakes.scripted_teacher import teacher_by_rule
from tests.fakes.stock_server import StockTestServer
from tests.stock import playing

DOCUMENT = parse('Go<promise topic="one" tokens="1"/><async> 1 2</async> and<sync/> on')
NOWHERE = "http://127.0.0.1:1"


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
    held = "--model", taught_folder, "--engine", server.url
    for verb in (("run", "hello"), ("serve", "--port", 0)):
        refused = pasta(*verb, *held)
        assert refused.code == 3
        assert "positions 'predict' with join 'shared' are not exact" in refused.err
        assert "trained with 'predict' and 'shared'; --allow-inexact" in refused.err
    allowed = pasta("run", "hello", *held, "--allow-inexact")
    assert (allowed.code, allowed.out) == (0, DOCUMENT.plain_text + "\n")


def test_a_teacher_may_be_on_several_servers(pasta: Pasta, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    with ScriptedServer(teacher_by_rule()) as one, ScriptedServer(teacher_by_rule()) as other:
        urls = ",".join(server.base_url for server in (one, other))
        result = pasta("annotate", recipe, "--engine", urls)
        assert result.code == 0, result.err
        assert min(one.num_requests, other.num_requests) > 0
    assert "8 rows: 7 ok" in result.err


def test_annotation_without_a_teacher_has_no_servers(pasta: Pasta, tmp_path: Path) -> None:
    recipe = Path(write_recipe(tmp_path))
    text = recipe.read_text().partition("[teacher]")[0]
    recipe.write_text(f'annotator = "markdown_rule"\n{text}')
    result = pasta("annotate", recipe, "--engine", NOWHERE)
    assert result.code == 2
    assert "it asks no model" in result.err


LIMIT_S = 120  # longest wait for the end of a process


@contextmanager
def started(*flags: object) -> Iterator[tuple[subprocess.Popen[str], OpenAI]]:
    """Start a started on a free port and yield it with a client; kill it if it is still there."""
    command = [sys.executable, "-m", "pasta_lm", "serve", "--port", "0", *map(str, flags)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if found := re.search(r"running on (http://[\w.:]+)", line):
                yield process, OpenAI(base_url=f"{found[1]}/v1", api_key="key", max_retries=0)
                break
        else:
            raise AssertionError("".join(lines))
    finally:
        process.kill()
        process.wait()


def test_the_answer_is_that_of_pasta_run_and_sigterm_ends_with_0(
    pasta: Pasta, taught_folder: Path
) -> None:
    flags = ("--max-tokens", 40, "--temperature", 1, "--seed", 2)
    expected = pasta("run", "hello", "--model", taught_folder, *flags, "--json").json
    with started("--model", taught_folder, "--api-key", "key") as (process, client):
        asked = {"model": taught_folder.name, "max_tokens": 40, "temperature": 1, "seed": 2}
        messages = [{"role": "user", "content": "hello"}]
        answer = client.chat.completions.create(messages=messages, **asked)  # type: ignore[call-overload]
        assert (answer.model, expected["model"]) == (taught_folder.name,) * 2
        assert answer.choices[0].message.content == expected["text"]
        assert answer.usage.to_dict().items() >= expected["usage"].items()
        assert [one["num_tokens"] for one in answer.pasta["choices"][0]["threads"]] == [
            one["num_tokens"] for one in expected["threads"]
        ]
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        log = [json.loads(line) for line in process.stderr]
        assert process.wait(LIMIT_S) == 0
    (line,) = [one for one in log if one["message"] == "request"]
    assert line["path"] == "/v1/chat/completions"
    assert "hello" not in json.dumps(line)


def test_in_a_terminal_it_greets_and_writes_plain_lines(taught_folder: Path) -> None:
    main, side = pty.openpty()
    command = [sys.executable, "-m", "pasta_lm", "serve", "--port", "0", "--model", taught_folder]
    process, text = subprocess.Popen(command, stderr=side), ""
    while "ends it" not in text and process.poll() is None:
        text += os.read(main, 4096).decode()
    if found := re.search(r"page +(http://[\w.:]+)", text):
        urlopen(f"{found[1]}/health").close()
        while "/health" not in text:
            text += os.read(main, 4096).decode()
    process.kill()
    process.wait()
    assert re.search(
        rf"serving {taught_folder.name} .*parameters .*/chat.html.*/v1\r\n", text, re.S
    )
    assert re.search(r"^[\d:]{8} 200 GET /health, \d\.\d\d s\r$", text, re.M)
    assert "{" not in text
