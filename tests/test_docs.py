"""Documentation is checked: examples run, commands parse, links and files exist."""

from __future__ import annotations

import doctest
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer.main

from pasta_lm.cli import app

ROOT = Path(__file__).parents[1]
FOLDERS = ("", "docs/", "corpora/*/", "lab/", "lab/*/", "lab/runs/*/", "src/pasta_lm/models/*/")
HISTORY = {"lab/log.md", "lab/hypotheses.md"}
PAGES = sorted(
    page
    for folder in FOLDERS
    for page in ROOT.glob(f"{folder}*.md")
    if page.relative_to(ROOT).as_posix() not in HISTORY
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MAX_RESULT_CHARACTERS = 160


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def fences(page: Path, *languages: str) -> list[str]:
    blocks = FENCE.findall(page.read_text("utf-8"))
    return [body for language, body in blocks if language in languages]


def commands(page: Path) -> list[str]:
    """Return the commands in the blocks and sentences of a page, each part of a pipe by itself."""
    joined = "".join(fences(page, "console", "text")).replace("\\\n", " ")
    lines = [line[2:] for line in joined.splitlines() if line.startswith("$ ")]
    prose = FENCE.sub("", page.read_text("utf-8"))
    lines += re.findall(r"`(pasta(?:-lab)? [^`|…]+)`", prose)
    parts = (part for line in lines for part in re.split(r"\s(?:&&|\||>|<|&)\s", line))
    return sorted({part.strip() for part in parts if part.strip()})


# --- examples


@pytest.mark.parametrize("page", ["docs/python.md"])
def test_python_examples_print_what_the_page_shows(page: str) -> None:
    session = "\n".join(body for body in fences(ROOT / page, "python") if ">>>" in body)
    assert session.count(">>>") >= 3
    test = doctest.DocTestParser().get_doctest(session, {}, page, page, 0)
    report: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.append)
    assert result.attempted
    assert not result.failed, "".join(report)


def test_the_still_in_the_readme_is_what_pasta_play_prints() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    (still,) = re.findall(r"<!-- still.*?-->\n```text\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)
    command = [sys.executable, "-m", "pasta_lm", "play"]
    played = subprocess.run(command, check=True, capture_output=True, text=True)
    assert played.stdout.startswith(still)


# --- commands

COMMANDS = [(name_of(page), command) for page in PAGES for command in commands(page)]
COMMAND_LINE = typer.main.get_command(app)


def parse_error(
    arguments: list[str], capsys: pytest.CaptureFixture[str], command: typer.Typer = app
) -> str:
    """Return the error of a command line that does not parse; empty if it does.

    ``--help`` is answered after the whole line was parsed, so an unknown flag fails before it.
    """
    try:
        line = COMMAND_LINE if command is app else typer.main.get_command(command)
        line.main([*arguments, "--help"], "pasta", standalone_mode=True)
    except SystemExit as exc:
        return capsys.readouterr().err if exc.code else ""
    raise AssertionError("the command ran")


def test_there_are_commands_to_check() -> None:
    assert sum(command.startswith("pasta ") for _, command in COMMANDS) >= 40


@pytest.mark.parametrize(
    ("page", "command"), [pytest.param(*pair, id=": ".join(pair)) for pair in COMMANDS]
)
def test_a_documented_command_parses(
    page: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word for word in shlex.split(command, comments=True) if word not in ("...", "…")]
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        del words[0]
    if not words:
        return
    name, *arguments = words
    if name == "accelerate":
        assert "pasta_lm" in arguments
        name, arguments = "pasta", arguments[arguments.index("pasta_lm") + 1 :]
    if name == "pasta-lab":
        return  # lab/tests/test_peers.py
    if name == "pasta":
        assert not parse_error(arguments, capsys)
    elif name.startswith(("scripts/", "runs/")):
        assert os.access(ROOT / name, os.X_OK)
    elif name == "python":
        scripts = [word for word in arguments if word.endswith(".py")]
        assert all((ROOT / script).is_file() for script in scripts)
    elif name == "pytest":
        assert all((ROOT / word).exists() for word in arguments if not word.startswith("-"))
    else:
        assert name in {"pip", "hf", "git", "cd", "export", "curl", "echo", "mkdocs"}, (
            "no test can vouch for this command"
        )


def test_an_unknown_flag_does_not_parse(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_error(["run", "--no-such-flag"], capsys)


def test_the_reference_pages_are_up_to_date() -> None:
    subprocess.run([sys.executable, ROOT / "scripts" / "reference_pages.py", "--check"], check=True)


# --- links and files


def anchors(page: Path) -> set[str]:
    text = FENCE.sub("", page.read_text("utf-8"))
    slugs: set[str] = set()
    for heading in re.findall(r"^#+ +(.*?) *#*$", text, re.MULTILINE):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        number = 0
        while (anchor := f"{slug}-{number}" if number else slug) in slugs:
            number += 1
        slugs.add(anchor)
    return slugs


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_within_the_project_lead_to_a_file_and_to_a_heading(page: Path) -> None:
    text = FENCE.sub("", page.read_text("utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)[^)]*\)", text):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        if anchor:
            assert anchor in anchors(linked), target


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_files_that_a_page_names_exist(page: Path) -> None:
    roots = (ROOT, ROOT / "src" / "pasta_lm", ROOT / "lab", ROOT / "lab" / "pasta_lab")
    folders = "tests|docs|runs|corpora|scripts|lab|language|interpreter|models|engines|strategies"
    text = FENCE.sub("", page.read_text("utf-8"))
    more = r"view|learn|measure|serve|cli"
    for name in set(
        re.findall(
            rf"`((?:{folders}|{more})/[\w./-]+\.(?:py|md|toml|sh|jsonl))`(?! of\s+commit)", text
        )
    ):
        assert any((root / name).exists() for root in roots), name


def test_the_notebook_was_run_from_top_to_bottom_without_an_error() -> None:
    cells = json.loads((ROOT / "docs" / "first-minute.ipynb").read_text("utf-8"))["cells"]
    codes = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in codes] == [*range(1, len(codes) + 1)]
    kinds = [output["output_type"] for cell in codes for output in cell["outputs"]]
    assert {*kinds} == {"stream", "execute_result"}


def test_every_extra_that_is_installed_somewhere_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    files = [*PAGES, ROOT / "Dockerfile", ROOT / "scripts" / "setup"]
    files += (ROOT / ".github" / "workflows").iterdir()
    text = "\n".join(file.read_text("utf-8") for file in files)
    named = re.findall(r"pip install [^\n\[]*\[([\w,]+)\]", text)
    assert len(named) > 10
    assert {*",".join(named).split(",")} <= {*project["optional-dependencies"]}


def test_every_page_of_the_documentation_is_in_its_index() -> None:
    shown = (ROOT / "mkdocs.yml").read_text("utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name in shown, page.name


# --- tables of results


@pytest.mark.parametrize("page", ["README.md", "docs/results.md"])
def test_a_line_of_results_is_short_and_a_cell_has_one_value(page: str) -> None:
    text = FENCE.sub("", (ROOT / page).read_text("utf-8"))
    for line in text.splitlines():
        if line.startswith("|"):
            assert ";" not in line, line
        else:
            assert len(line) <= MAX_RESULT_CHARACTERS, line
