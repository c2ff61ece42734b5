"""``--engine`` of the verbs: what decodes on servers, and what says why it cannot."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

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
