"""The command line as a whole: help, exit codes, environment variables, errors."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
import typer

from pasta_lm import __version__
from pasta_lm.cli import app
from pasta_lm.errors import PastaError
from tests.cli.conftest import Pasta

VERBS = (
    "run",
    "chat",
    "play",
    "check",
    "examples",
    "replay",
    "view",
    "serve",
    "annotate",
    "doctor",
    "export",
)
VERBS += ("train", "train sft", "train preference", "train router")
VERBS += ("evaluate", "evaluate tasks", "evaluate frontier", "evaluate alpaca")
VERBS += ("evaluate lc-winrate", "evaluate speed", "evaluate export")
VERBS += ("evaluate agreement", "evaluate cost", "evaluate instructions", "evaluate ifeval")
VERBS += ("judge", "judge check", "bench", "bench engine", "bench load", "bench serve")
VERBS += ("teach", "answer")

# Verbs for stock servers have three flags more: --engine, --dialect, --allow-inexact.
MANY_FLAGS = {"run", "serve", "evaluate tasks", "evaluate alpaca", "evaluate instructions"}


def commands(group: Any, name: str = "") -> dict[str, Any]:
    """Return every verb with what is behind it, those of groups too."""
    found: dict[str, Any] = {}
    for verb, command in group.commands.items():
        found[f"{name}{verb}"] = command
        if hasattr(command, "commands"):
            found |= commands(command, f"{name}{verb} ")
    return found


COMMANDS = commands(typer.main.get_command(app))
FLAGS = [
    (verb, param)
    for verb, command in COMMANDS.items()
    for param in command.params
    if param.param_type_name == "option" and param.name != "help"
]


def test_every_verb_is_listed() -> None:
    assert sorted(COMMANDS) == sorted(VERBS)


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_help_fits_80_columns_without_cuts(pasta: Pasta, verb: str) -> None:
    result = pasta(*verb.split(), "--help")
    assert (result.code, result.err) == (0, "")
    assert "..." not in re.sub(r"(ARGS|SOURCE)[\]}]*\.\.\.", "", result.out)
    assert max(map(len, result.out.splitlines())) <= 80


@pytest.mark.parametrize(("verb", "flag"), FLAGS, ids=lambda value: getattr(value, "name", value))
def test_only_flags_of_the_machine_have_an_environment_twin(verb: str, flag: object) -> None:
    twins = {one: f"PASTA_{one.upper()}" for one in ("model", "device", "dtype", "debug")}
    long = next(name for name in flag.opts if name.startswith("--"))  # type: ignore[attr-defined]
    assert flag.envvar == twins.get(long.removeprefix("--"))  # type: ignore[attr-defined]


@pytest.mark.parametrize("verb", sorted({*COMMANDS} - MANY_FLAGS))
def test_a_verb_has_at_most_ten_flags(verb: str) -> None:
    flags = {flag.name for name, flag in FLAGS if name == verb and not flag.hidden}
    assert len(flags) <= 10


@pytest.mark.parametrize("verb", sorted(MANY_FLAGS - {"run"}))
def test_a_verb_for_stock_servers_has_ten_flags_besides_theirs(verb: str) -> None:
    flags = {flag.name for name, flag in FLAGS if name == verb and not flag.hidden}
    assert len(flags - {"engine", "dialect", "allow_inexact"}) <= 10


def test_a_flag_wins_over_its_environment_twin(pasta: Pasta) -> None:
    twin = {"PASTA_MODEL": "./nowhere"}
    assert "no model at ./nowhere" in pasta("run", "hello", **twin).err
    assert "no model at ./other" in pasta("run", "hello", "--model", "./other", **twin).err


def test_the_version_is_the_package_s(pasta: Pasta) -> None:
    assert pasta("--version").out == f"pasta-lm {__version__}\n"


def test_without_a_verb_the_help_is_shown(pasta: Pasta) -> None:
    result = pasta()
    assert result.code == 2
    assert "Commands:" in result.err


def test_an_unknown_verb_or_flag_is_a_usage_error_with_a_suggestion(pasta: Pasta) -> None:
    verb, flag = pasta("chek"), pasta("play", "--sped", "2")
    assert (verb.code, flag.code) == (2, 2)
    assert "check" in verb.err
    assert "--speed" in flag.err
    assert len(flag.err.splitlines()) <= 4


@pytest.mark.parametrize(
    ("error", "code", "shown"),
    [
        (PastaError("a\nb\nc\nd\ne", hint="do\nthis"), 1, "pasta: a\nb\nc\n    hint: do\n"),
        (PastaError("alone"), 1, "pasta: alone\n"),
        (ModuleNotFoundError("no", name="torch.nn"), 2, "pip install 'pasta-lm[torch]'"),
        (RuntimeError("first\nsecond"), 1, "unexpected RuntimeError: first\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_an_error_has_at_most_four_lines_and_its_exit_code(
    pasta: Pasta, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, shown: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("pasta_lm.cli.terminal.read_text", fail)
    result = pasta("check", "file")
    assert result.code == code
    assert shown in result.err
    assert len(result.err.splitlines()) <= 4


@pytest.mark.parametrize("arguments", [("--debug", "view", "no"), ("view", "no", "--debug")])
def test_only_debug_shows_a_traceback(pasta: Pasta, arguments: tuple[str, ...]) -> None:
    assert pasta("view", "no").code == 3
    with pytest.raises(PastaError):
        pasta(*arguments)
    with pytest.raises(PastaError):
        pasta("view", "no", PASTA_DEBUG="1")


def test_help_loads_no_heavy_module() -> None:
    heavy = {"torch", "transformers", "tokenizers", "pydantic", "openai", "sklearn", "scipy"}
    heavy |= {"matplotlib", "numpy", "rich", "pasta_lm.interpreter"}
    code = (
        "import sys; sys.argv = ['pasta', '--help']\n"
        "from pasta_lm.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"sys.exit(' '.join({heavy!r} & {{*sys.modules}}) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize("verb", [("train", "sft"), ("train", "preference"), ("annotate",)])
def test_a_missing_recipe_is_an_error_without_system_codes(
    pasta: Pasta, verb: tuple[str, ...]
) -> None:
    result = pasta(*verb, "nowhere.toml")
    assert (result.code, result.out) == (2, "")
    assert "nowhere.toml" in result.err
    assert "No such file" in result.err
    assert "[Errno" not in result.err
    assert "hint: " in result.err
