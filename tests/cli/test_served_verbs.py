"""``--engine`` of the verbs: what decodes on servers, and what says why it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Pasta
from tests.cli.test_annotate import write_recipe
from tests.fakes.scripted_server import ScriptedServer
from tests.fakes.scripted_teacher import teacher_by_rule
from tests.stock_model import serving

NOWHERE = "http://127.0.0.1:1"
INSTRUCTIONS = ("evaluate", "instructions", "--out", "o", "--model", "m")


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (("evaluate", "alpaca", "--out", "o", "--model", "m", "--system", "s=sot:b"), 2, "b is to"),
        ((*INSTRUCTIONS, "--baseline", "b"), 2, "b is to"),
        (("serve", "--port", 0), 2, "--engine needs --model"),
        (
            ("serve", "--port", 0, "--model", "m", "--device", "cpu"),
            2,
            "--device cannot be used with --engine",
        ),
        (("run", "hello"), 2, "--engine needs --model"),
        (("replay", "answers.jsonl", "--model", "m"), 2, "no such option: --engine"),
    ],
)
def test_what_cannot_be_served_is_refused_with_its_reason(
    pasta: Pasta, arguments: tuple[str, ...], code: int, reason: str
) -> None:
    result = pasta(*arguments, "--engine", NOWHERE)
    assert (result.code, result.out) == (code, "")
    assert reason in result.err


@pytest.mark.parametrize("verb", [("run", "hello"), ("serve",)])
@pytest.mark.parametrize("flag", [("--dialect", "vllm"), ("--allow-inexact",)])
def test_the_companions_of_engine_are_refused_without_it(
    pasta: Pasta, verb: tuple[str, ...], flag: tuple[str, ...]
) -> None:
    result = pasta(*verb, *flag)
    assert result.code == 2
    assert f"{flag[0]} is for --engine" in result.err


def test_a_model_that_is_not_exact_is_not_served_unless_it_is_allowed(
    pasta: Pasta, taught_folder: Path
) -> None:
    with serving(taught_folder) as server:
        refused = pasta("serve", "--port", 0, "--model", taught_folder, "--engine", server.url)
    assert refused.code == 3
    assert "positions 'predict' with join 'shared' are not exact" in refused.err
    assert "trained with 'predict' and 'shared'; --allow-inexact" in refused.err


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
