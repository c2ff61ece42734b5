"""The command line as a whole: help, exit codes, environment variables, errors."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest
import typer

from pasta_lm import __version__
from pasta_lm.cli import app
from pasta_lm.errors import InputError, PastaError
from tests.cli.conftest import Pasta

MAX_FLAGS = 11
VERBS = {
    *("run", "chat", "play", "check", "replay", "serve", "view", "teach", "annotate", "export"),
    *("doctor", "train", "train sft", "train preference", "bench", "evaluate", "evaluate alpaca"),
    *("evaluate instructions", "evaluate ifeval", "evaluate cost", "evaluate lc-winrate"),
    *("evaluate speed", "fill", "ask"),
}


def commands(group: Any, name: str = "") -> dict[str, Any]:
    """Return all verbs with their commands, those of groups too."""
    listed: dict[str, Any] = {}
    context = typer.Context(group)
    for verb in group.list_commands(context):
        command = listed[f"{name}{verb}"] = group.get_command(context, verb)
        if hasattr(command, "list_commands"):
            listed |= commands(command, f"{name}{verb} ")
    return listed


FLAGS = [
    (verb, param)
    for verb, command in commands(typer.main.get_command(app)).items()
    for param in command.params
    if param.param_type_name == "option" and param.name != "help"
]


@pytest.mark.parametrize("verb", ["", *sorted(VERBS)])
def test_help_fits_80_columns_without_cuts(pasta: Pasta, verb: str) -> None:
    result = pasta(*verb.split(), "-h")
    assert (result.code, result.err) == (0, "")
    assert "..." not in re.sub(r"(ARGS|SOURCE|QUESTIONS|PROMPT)[\]}]*\.\.\.", "", result.out)
    assert max(map(len, result.out.splitlines())) <= 80


def test_help_and_version_are_also_words(pasta: Pasta) -> None:
    assert pasta("help").out == pasta("--help").out
    assert pasta("help", "evaluate", "speed").out == pasta("evaluate", "speed", "--help").out
    assert pasta("version").out == pasta("--version").out == f"pasta-lm {__version__}\n"


def test_completion_lists_the_verbs_for_a_shell() -> None:
    environment = {"_PASTA_COMPLETE": "complete_bash", "COMP_WORDS": "pasta ch", "COMP_CWORD": "1"}
    code = "from pasta_lm.cli import main; main()"
    command, env = [sys.executable, "-c", code], {**os.environ, **environment}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.stdout.split() == ["chat", "check"]


def test_only_flags_of_the_machine_have_an_environment_twin() -> None:
    twins = {f"--{name}": f"PASTA_{name.upper()}" for name in ("model", "device", "dtype", "debug")}
    for verb, flag in FLAGS:
        long = next(name for name in flag.opts if name.startswith("--"))
        assert flag.envvar == twins.get(long), verb


def test_no_verb_but_run_and_fill_has_more_flags_than_a_reader_can_survey() -> None:
    servers = {"--engine", "--dialect", "--allow-inexact"}
    counts = Counter(verb for verb, flag in FLAGS if not servers & {*flag.opts})
    assert [verb for verb, count in counts.items() if count > MAX_FLAGS] == ["run", "fill"]


def test_a_flag_wins_over_its_environment_twin(pasta: Pasta) -> None:
    twin = {"PASTA_MODEL": "./nowhere"}
    assert "nowhere" in pasta("run", "hello", **twin).err
    assert "other" in pasta("run", "hello", "--model", "./other", **twin).err


def test_without_a_verb_the_help_is_shown(pasta: Pasta) -> None:
    for group in ((), ("evaluate",)):
        result = pasta(*group)
        assert (result.code, result.out) == (2, "")
        assert result.err.startswith("Usage: ")


@pytest.mark.parametrize(
    ("error", "code", "shown"),
    [
        (PastaError("a\nb\nc\nd\ne", hint="do\nthis"), 1, "pasta: a\nb\nc\n    hint: do\n"),
        (PastaError("alone"), 1, "pasta: alone\n"),
        (ModuleNotFoundError("no", name="torch.nn"), 2, "(module torch) needs the extra"),
        (OSError(28, "No space left on device", "a.json"), 1, "a.json cannot be read or written"),
        (RuntimeError("first\nsecond"), 1, "unexpected RuntimeError: first\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_an_error_has_at_most_four_lines_and_its_exit_code(
    pasta: Pasta, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, shown: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("pasta_lm.cli.doctor.find_errors", fail)
    result = pasta("check", "-", stdin="text")
    assert result.code == code
    assert shown in result.err
    assert len(result.err.splitlines()) <= 4


@pytest.mark.parametrize("arguments", [("--debug", "view", "no"), ("view", "no", "--debug")])
def test_only_debug_shows_a_traceback(pasta: Pasta, arguments: tuple[str, ...]) -> None:
    assert pasta("view", "no").code == 3
    with pytest.raises(InputError):
        pasta(*arguments)
    with pytest.raises(InputError):
        pasta("view", "no", PASTA_DEBUG="1")


@pytest.mark.parametrize("verb", ["", "demo", "run", "chat", "serve", "bench"])
def test_help_loads_no_heavy_module(verb: str) -> None:
    heavy = {"torch", "transformers"}  # they read the environment, which flags of a verb set
    if not verb:
        heavy |= {"tokenizers", "pydantic", "openai", "sklearn", "scipy", "matplotlib", "numpy"}
        heavy |= {"rich", "pasta_lm.interpreter"}
    code = (
        f"import sys; sys.argv = ['pasta', *{verb!r}.split(), '--help']\n"
        "from pasta_lm.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"sys.exit(' '.join({heavy!r} & {{*sys.modules}}) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize(
    ("redirection", "code", "error"),
    [
        ("<&-", 0, ""),
        ("</dev/null 2>&-", 0, ""),
        (">&-", 1, "pasta: the output cannot be written: bad file descriptor\n"),
        (">/dev/full", 1, "pasta: the output cannot be written: no space left on device\n"),
    ],
)
def test_closed_streams_are_ignored_but_an_output_that_cannot_be_written_is_an_error(
    redirection: str, code: int, error: str
) -> None:
    command = f"{sys.executable} -m pasta_lm check - {redirection}"
    done = subprocess.run(["sh", "-c", command], input="text", capture_output=True, text=True)
    out = "" if code else "-: valid\n"
    assert (done.returncode, done.stdout, done.stderr) == (code, out, error)
