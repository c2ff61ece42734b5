"""``--engine`` of the verbs: what decodes on servers, and what says why it cannot."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import signal
from collections.abc import Iterator
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
from tests.processes import LIMIT_S, Process
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


def test_the_answer_is_that_of_pasta_run_and_sigterm_ends_with_0(
    pasta: Pasta, taught_folder: Path, tmp_path: Path
) -> None:
    flags = ("--max-tokens", 40, "--temperature", 1, "--seed", 2)
    expected = pasta("run", "hello", "--model", taught_folder, *flags, "--json").json
    served = ("--model", taught_folder, "--api-key", "key")
    process = Process("serve", "--port", 0, *served, log=tmp_path / "log")
    try:
        url = process.wait_for(r"running on (http://[\w.:]+)")
        client = OpenAI(base_url=f"{url}/v1", api_key="key", max_retries=0)
        request = {"model": taught_folder.name, "max_tokens": 40, "temperature": 1, "seed": 2}
        messages = [{"role": "user", "content": "hello"}]
        answer = client.chat.completions.create(messages=messages, **request)  # type: ignore[call-overload]
        process.send(signal.SIGTERM)
        assert process.finish() == 0
    finally:
        process.kill()
    assert (answer.model, expected["model"]) == (taught_folder.name,) * 2
    assert answer.choices[0].message.content == expected["text"]
    assert answer.usage.to_dict().items() >= expected["usage"].items()
    assert [thread["num_tokens"] for thread in answer.pasta["choices"][0]["threads"]] == [
        thread["num_tokens"] for thread in expected["threads"]
    ]
    lines = [json.loads(line) for line in process.output.splitlines() if line.startswith("{")]
    (logged,) = [line for line in lines if line["message"] == "request"]
    assert logged["path"] == "/v1/chat/completions"
    assert "hello" not in json.dumps(logged)


def test_in_a_terminal_it_greets_and_writes_plain_lines(taught_folder: Path) -> None:
    main, side = pty.openpty()
    served = ("--port", 0, "--model", taught_folder)
    process, text = Process("serve", *served, log=Path(os.ttyname(side))), ""

    def read_until(pattern: str) -> re.Match[str]:
        nonlocal text
        while not (match := re.search(pattern, text)):
            assert select.select([main], [], [], LIMIT_S)[0], text
            text += os.read(main, 4096).decode()
        return match

    try:
        url = read_until(r"page +(http://[\w.:]+)[^ ]*\s[\s\S]*ends it")[1]
        urlopen(f"{url}/health").close()
        read_until("/health.*\n")
    finally:
        process.kill()
    assert re.search(
        rf"serving {taught_folder.name} .*parameters .*/chat.html.*/v1\r\n", text, re.S
    )
    assert re.search(r"^[\d:]{8} 200 GET /health, \d\.\d\d s\r$", text, re.M)
    assert "{" not in text
