"""``pasta run`` and ``pasta doctor``, with tiny random models."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path

import pytest

from pasta_lm.cli.app import packages_by_extra
from pasta_lm.cli.doctor import CORE
from pasta_lm.errors import install_command
from pasta_lm.machine import OtherProcesses
from pasta_lm.strategies import model as public
from tests.cli.conftest import Pasta

FEW = ("--max-tokens", 40, "--temperature", 1, "--seed", 2)


def test_piped_it_prints_the_answer_alone_and_one_line_of_figures(
    pasta: Pasta, taught_folder: Path
) -> None:
    as_json = pasta("run", "hello", "--model", taught_folder, *FEW, "--json").json
    result = pasta("run", "hello", "--model", taught_folder, *FEW)
    assert result.code == 0
    assert result.out == as_json["text"] + "\n"
    (line,) = result.err.splitlines()
    assert line.startswith("pasta: ")
    assert re.search(r"\d+ tokens", line)
    assert "\x1b" not in result.err


def test_json_has_the_documented_keys(pasta: Pasta, taught_folder: Path) -> None:
    answer = pasta("run", "hello", "--model", taught_folder, *FEW, "--json").json
    documented = {"model", "engine", "strategy", "finish_reason", "text", "program", "threads"}
    documented |= {"usage", "critical_path_tokens", "forward_passes", "parallelism", "wall_s"}
    assert documented <= answer.keys()
    thread = {"id", "parent", "topic", "promised_tokens", "num_tokens", "start_step", "end_step"}
    assert thread | {"finish_reason"} == answer["threads"][0].keys()
    assert answer["usage"].keys() == {"prompt_tokens", "completion_tokens", "total_tokens"}
    assert answer["strategy"] == "pasta"
    is_cut = answer["finish_reason"] == "length"
    assert answer["cut_at_tokens"] == (40 if is_cut else None)
    assert (answer["sampling"]["temperature"], answer["sampling"]["seed"]) == (1, 2)


def test_several_answers_are_an_array_of_choices(pasta: Pasta, taught_folder: Path) -> None:
    result = pasta("run", "hello", "--model", taught_folder, *FEW, "--n", 2, "--json")
    assert list(result.json) == ["choices"]
    assert len(result.json["choices"]) == 2
    assert len(result.err.splitlines()) == 2


def test_the_prompt_comes_from_one_of_three_places(
    pasta: Pasta, taught_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "prompt.txt").write_text("\ufeffhello")  # a byte-order mark is no part of it
    rest = ("--model", taught_folder, *FEW)
    typed = pasta("run", "hello", *rest).out
    assert pasta("run", *rest, stdin="hello").out == typed
    assert pasta("run", "-f", tmp_path / "prompt.txt", *rest).out == typed
    beside = pasta("run", "Say:", "-f", tmp_path / "prompt.txt", *rest).out
    assert beside == pasta("run", "Say:\n\nhello", *rest).out != typed


def test_into_a_pipe_the_text_is_written_while_it_is_decoded(
    pasta: Pasta, taught_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = pasta("run", "hello", "--model", taught_folder, *FEW, "--json").json["text"]
    pieces = list[str]()
    monkeypatch.setattr("typer.echo", lambda text="", *, nl=True, err=False: pieces.append(text))
    pasta("run", "hello", "--model", taught_folder, *FEW)
    assert ("".join(pieces[:-2]), pieces[-2]) == (whole, "")
    assert len(pieces) > 5


NO_PROMPT = '\n    hint: pasta run "Three ways to sleep better"\n'


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "shown"),
    [
        (("caf\udce9",), "", 3, "pasta: the prompt is not UTF-8\n"),
        ((), None, 2, f"pasta: there is no prompt{NO_PROMPT}"),
        (("",), "", 2, f"pasta: the prompt is empty{NO_PROMPT}"),
        ((), " \n", 2, f"pasta: the prompt is empty{NO_PROMPT}"),
        (("--file", "/dev/null"), "", 2, f"pasta: the prompt is empty{NO_PROMPT}"),
    ],
)
def test_a_prompt_that_is_missing_or_broken_is_an_error_with_a_hint(
    pasta: Pasta, arguments: tuple[str, ...], stdin: str | None, code: int, shown: str
) -> None:
    result = pasta("run", *arguments, stdin=stdin)
    assert (result.code, result.out) == (code, "")
    assert result.err.startswith(shown)


def test_a_model_without_a_chat_template_continues_the_prompt_and_says_so_once(
    pasta: Pasta, taught_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "plain"
    shutil.copytree(taught_folder, folder)
    (folder / "chat_template.jinja").unlink()
    result = pasta("run", "hello", "--model", folder, *FEW)
    assert result.out == pasta("run", "hello", "--model", taught_folder, *FEW).out
    notice, _ = result.err.splitlines()
    assert notice == "pasta: this model has no chat template: it continues the prompt as plain text"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "shown"),
    [("-m pasta_lm run hello --max-tokens 3 --model", r"(pasta: .*\n)+"),
     ("-c import\tpasta_lm,sys;pasta_lm.Pasta.from_pretrained(sys.argv[1])", "")],
)  # fmt: skip
def test_the_libraries_under_a_model_are_silent(
    taught_folder: Path, command: str, shown: str
) -> None:
    arguments = [sys.executable, *command.split(" "), taught_folder]
    run = subprocess.run(arguments, check=True, capture_output=True, text=True)
    assert re.fullmatch(shown, run.stderr)


@pytest.mark.parametrize(
    ("name", "offline", "shown"),
    [("no/such", "0", "trying the hub for no/such …"), ("no/such", "1", "loading no/such"),
     (".", "0", "loading ."), ("builtin", "0", "loading builtin")],
)  # fmt: skip
def test_a_name_that_the_hub_is_asked_for_is_said(
    pasta: Pasta, monkeypatch: pytest.MonkeyPatch, name: str, offline: str, shown: str
) -> None:
    notes = list[str]()
    monkeypatch.setattr("pasta_lm.cli.terminal.status", lambda text: notes.append(text) or 1 / 0)
    pasta("run", "hello", "--model", name, HF_HUB_OFFLINE=offline)
    assert notes == [shown]


def test_a_trace_can_be_viewed(pasta: Pasta, taught_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    pasta("run", "hello", "--model", taught_folder, *FEW, "--trace", file)
    assert json.loads(file.read_text())["strategy"] == "pasta"
    assert pasta("view", file).code == 0
    threads = pasta("view", file, COLUMNS="30").out.split("\n\n")[1].splitlines()
    assert {len(line) for line in threads} == {30}


def test_the_sequential_strategy_of_the_builtin_model_is_its_baseline(
    pasta: Pasta, monkeypatch: pytest.MonkeyPatch, untaught_folder: Path
) -> None:
    loaded = []

    def load(name: str, **_: object) -> public.Pasta:
        loaded.append(name)
        return original(untaught_folder)

    original = public.Pasta.from_pretrained
    monkeypatch.setattr(public.Pasta, "from_pretrained", load)
    result = pasta("run", "hello", "--strategy", "sequential", "--max-tokens", 3)
    assert loaded == ["builtin-sequential"]
    assert "builtin-sequential answers, taught without tags" in result.err


@pytest.mark.parametrize("strategy", ["sot", "prompt-lookup", "apar"])
def test_a_baseline_answers_under_its_own_name(
    pasta: Pasta, taught_folder: Path, strategy: str
) -> None:
    flags = ("--model", taught_folder, "--max-tokens", 12, "--strategy", strategy)
    result = pasta("run", "hello", *flags, "--json")
    assert result.code == 0
    # A model that was taught PASTA-LANG cannot answer as APAR does, and does not claim to.
    is_apar = strategy == "apar"
    assert ("was not taught apar" in result.err) == is_apar
    assert result.json["strategy"] == ("sequential" if is_apar else strategy)
    if strategy in ("prompt-lookup", "apar"):
        flags = ("--model", taught_folder, "--max-tokens", 12, "--strategy", "sequential")
        alone = pasta("run", "hello", *flags, "--json").json
        assert (result.json["text"], result.json["usage"]) == (alone["text"], alone["usage"])
        assert result.json["forward_passes"] <= alone["forward_passes"]


def test_a_model_without_tag_pieces_says_so_once_and_answers_sequentially(
    pasta: Pasta, untaught_folder: Path
) -> None:
    result = pasta("run", "hello", "--model", untaught_folder, "--max-tokens", 5)
    first, figures = result.err.splitlines()
    assert "not taught PASTA-LANG" in first
    assert "pasta fill and pasta ask work with it" in first
    assert re.search(r"5 tokens, one thread, .*, cut at 5 tokens$", figures)


@pytest.fixture
def doctor(pasta: Pasta, taught_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Pasta:
    """Return ``pasta doctor`` with a tiny model as the built-in one, which has tests of its own."""
    load = partial(public.Pasta.from_pretrained, taught_folder)
    monkeypatch.setattr(public.Pasta, "from_pretrained", lambda _, **device: load(**device))
    return partial(pasta, "doctor")


def test_doctor_reports_the_self_test_and_the_builtin_model(doctor: Pasta) -> None:
    result = doctor()
    assert (result.code, result.err) == (0, "")
    assert re.search(r"^self-test {2,}exact: ", result.out, re.M)
    assert re.search(
        r"^built-in model {2,}answers 'Write short .*: \d+ threads, ", result.out, re.M
    )


def test_doctor_answers_in_json(doctor: Pasta, taught_folder: Path) -> None:
    facts = doctor("--model", taught_folder, "--json").json
    assert facts["self_test"]["is_exact"] is True
    assert facts["builtin_model"]["finish_reason"] in {"stop", "length"}
    assert facts["builtin_model"].keys() > {"parallelism", "num_threads", "wall_s"}
    assert facts["model"]["has_tag_pieces"] is True
    assert facts["extras"].keys() >= {"torch", "train", "data", "evaluate", "ifeval", "serve"}


def test_doctor_reads_the_packages_of_every_extra_from_the_metadata() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert {*packages_by_extra()} == {*project["optional-dependencies"]} - {"dev"}
    assert "transformers" in packages_by_extra()["run"]
    assert {re.split("[<>=]", one)[0] for one in project["dependencies"]} == {*CORE}


def test_doctor_names_the_extra_that_is_missing(
    pasta: Pasta, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pasta_lm.cli.doctor.installed_version", lambda package: None)
    monkeypatch.delitem(sys.modules, "pasta_lm.engines.passes.self_test", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delattr("pasta_lm.engines.passes.self_test", raising=False)
    result = pasta("doctor")
    assert result.code == 0
    assert install_command("run") in " ".join(result.out.split())
    assert "not known without torch" in result.out


# --- fill and ask

SCHEMA = {"properties": {"hotel": {"enum": ["Sol", "Aurora"]}, "nights": {"enum": [2, 3]}}}


def test_fill_prints_an_object_that_matches_and_ask_prints_each_question_with_its_answer(
    pasta: Pasta, taught_folder: Path, tmp_path: Path
) -> None:
    schema, questions = tmp_path / "s.json", tmp_path / "q.txt"
    schema.write_text(json.dumps(SCHEMA), "utf-8")
    questions.write_text("Who came?\n\nWhere?\n" * 33, "utf-8")  # more than an answer's blocks
    rest = ("--model", taught_folder, "--max-tokens", 60)
    result = pasta("fill", "Book.", "--schema", schema, *rest)
    value = json.loads(result.out)
    assert (value["hotel"] in ("Sol", "Aurora"), value["nights"] in (2, 3)) == (True, True)
    trace = tmp_path / "trace.json"
    how = ("--after", "nights=hotel", "--json", "--trace", trace)
    as_json = pasta("fill", "Book.", "--schema", schema, *rest, *how).json
    figures = {"usage", "critical_path", "wall_s"}
    assert as_json.keys() == {"data", "confidence", "spans", "unfinished", *figures}
    assert as_json["spans"] == {"hotel": None, "nights": None}
    (tmp_path / "doc.txt").write_text("At the aurora or at the Sol.", "utf-8")
    beside = pasta("fill", "Sol or Aurora?", "-f", tmp_path / "doc.txt", "--schema", schema, *rest,
                   "--json").json  # fmt: skip
    places = {"Aurora": [7, 13], "Sol": [24, 27]}
    assert beside["spans"] == {"hotel": places[beside["data"]["hotel"]], "nights": None}
    assert pasta("view", trace).code == 0
    first, last = (json.loads(trace.read_text())["threads"][n] for n in (1, 2))
    assert last["start_step"] > first["end_step"], "nights waits for the hotel"
    assert (as_json["data"].keys(), as_json["unfinished"]) == (value.keys(), [])
    (tmp_path / "doc.txt").write_text("Ada came to Paris.", "utf-8")
    asked = pasta("ask", tmp_path / "doc.txt", questions, *rest, "--json")
    assert len(asked.json["data"]) == 66
    assert asked.code == (1 if asked.json["unfinished"] else 0)
    few = pasta("ask", tmp_path / "doc.txt", "Who came?", "Where?", *rest, "--json").json
    assert len(few["data"]) == 2


@pytest.mark.parametrize("schema", ["paid bool, nights int", "booked:Booking"])
def test_fields_are_listed_or_those_of_a_class_and_each_file_is_an_object(
    pasta: Pasta, taught_folder: Path, tmp_path: Path, schema: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    lines = ["from pydantic import BaseModel", "class Booking(BaseModel):"]
    Path("booked.py").write_text("\n".join([*lines, " paid: bool", " nights: int"]), "utf-8")
    for name in ("a.txt", "b.txt"):
        Path(name).write_text(f"Book {name}.", "utf-8")
    rest = ("--schema", schema, "--model", taught_folder, "--max-tokens", 400)
    both = pasta("fill", "Read.", "-f", "a.txt", "-f", "b.txt", *rest)
    alone = [pasta("fill", f"Read.\n\nBook {name}.", *rest).out for name in ("a.txt", "b.txt")]
    assert (both.code, both.out) == (0, "".join(alone))
    assert [json.loads(line).keys() for line in alone] == [{"paid", "nights"}] * 2


def test_the_demo_shows_fields_and_threads_and_says_what_else_was_running(
    pasta: Pasta, taught_folder: Path, untaught_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pasta_lm.cli.demo.MAX_TOKENS", 30)
    monkeypatch.setattr(OtherProcesses, "num_cores", 1.25)
    result = pasta("demo", "Name three rivers.", "-m", taught_folder)
    assert result.code == 0
    assert re.search(r"(?m)^right +\d+ of 10 +0 of 10$", result.out)
    assert "times as fast, but JSON mode was cut" in result.out
    assert re.search(r"(?m)^> Name three rivers\.$", result.out)
    assert re.search(
        r"(?m)^\d+ threads?: \d+\.\d\d s; same text by one: \d+\.\d\d s\.$", result.out
    )
    assert "other processes used 1.2 of the" in result.err
    untaught = pasta("demo", "-m", untaught_folder)
    assert "Ten fields at once" in untaught.out
    assert "threads" not in untaught.out
