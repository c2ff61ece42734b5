"""Documentation is checked: examples run, commands parse, links and anchors resolve."""

from __future__ import annotations

import ast
import doctest
import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import typer.main

from pasta_lm.cli import app

ROOT = Path(__file__).parents[1]
FOLDERS = ("", "docs/", "corpora/*/", "runs/*/", "src/pasta_lm/models/*/")
PAGES = sorted(page for folder in FOLDERS for page in ROOT.glob(f"{folder}*.md"))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def fences(page: Path, *languages: str) -> list[str]:
    found = FENCE.findall(page.read_text("utf-8"))
    return [body for language, body in found if language in languages]


def commands(page: Path) -> list[str]:
    """Return the commands in the blocks and sentences of a page, each part of a pipe by itself."""
    joined = "".join(fences(page, "console", "text")).replace("\\\n", " ")
    lines = [line[2:] for line in joined.splitlines() if line.startswith("$ ")]
    if page.name != "CHANGELOG.md":  # it names commands of earlier versions
        prose = FENCE.sub("", page.read_text("utf-8"))
        lines += re.findall(r"`(pasta [^`|…]+)`", prose)
    parts = (part for line in lines for part in re.split(r"\s(?:&&|\||>|<|&)\s", line))
    return sorted({part.strip() for part in parts if part.strip()})


# --- examples


@pytest.mark.parametrize("page", ["README.md", "docs/evaluation.md", "docs/serving.md"])
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


@cache
def command_line() -> typer.core.TyperGroup:
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    return group


def parse_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return why a command line does not parse; empty if it does.

    ``--help`` is answered after the whole line was parsed, so an unknown flag fails before it.
    """
    try:
        command_line().main([*arguments, "--help"], "pasta", standalone_mode=True)
    except SystemExit as exc:
        return capsys.readouterr().err if exc.code else ""
    raise AssertionError("the command ran")


def test_there_are_commands_to_check() -> None:
    assert sum(command.startswith("pasta ") for _, command in COMMANDS) >= 40


@pytest.mark.parametrize(
    ("page", "command"), [pytest.param(*one, id=": ".join(one)) for one in COMMANDS]
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
    if name == "pasta":
        assert not parse_error(arguments, capsys)
    elif name.startswith(("scripts/", "runs/")):
        assert os.access(ROOT / name, os.X_OK)
    elif name == "python":
        scripts = [word for word in arguments if word.endswith(".py")]
        assert all((ROOT / script).is_file() for script in scripts)
    else:
        assert name in {"pip", "hf", "git", "cd", "export", "make", "pytest"}, (
            "no test can vouch for this command"
        )


def test_an_unknown_flag_does_not_parse(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_error(["run", "--no-such-flag"], capsys)


# --- links


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    text = FENCE.sub("", page.read_text("utf-8"))
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.*?) *#*$", text, re.MULTILINE):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        number = 0
        while (anchor := f"{slug}-{number}" if number else slug) in found:
            number += 1
        found.add(anchor)
    return found


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


# --- words

HISTORY = {"CHANGELOG.md", "docs/log.md", "docs/hypotheses.md", "docs/glossary.md"}


def unused_words() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return the words that the glossary rules out, and the phrases in which they are allowed."""
    glossary = (ROOT / "docs" / "glossary.md").read_text("utf-8")
    table = glossary.partition("## Words that we do not use")[2]
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines()]
    rows = [row for row in rows if len(row) == 4][2:]
    words = "|".join(re.escape(row[0]) for row in rows)
    allowed = "|".join(re.escape(part) for row in rows for part in row[3].split(", ") if part)
    return re.compile(rf"\b({words})s?\b", re.I), re.compile(rf"\b({allowed})s?\b", re.I)


def prose(text: str) -> str:
    """Return a text without names in code style, quotations, links and code blocks."""
    text = FENCE.sub("", text)
    text = re.sub(r"^ +\w+: ", "", text, flags=re.MULTILINE)  # parameters in docstrings
    return re.sub(
        r"``.*?``|`[^`]*`|\"[^\"\n]*\"|\]\([^)]*\)|https?://\S+", "", text, flags=re.DOTALL
    )


def sentences(path: Path) -> str:
    """Return the docstrings, helps and messages of a module: its strings of several words."""
    if path.suffix != ".py":
        return path.read_text("utf-8")
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    strings = [one.value for one in nodes if isinstance(one, ast.Constant)]
    return "\n".join(one for one in strings if isinstance(one, str) and " " in one.strip())


@pytest.mark.parametrize(
    "path",
    [
        *(page for page in PAGES if name_of(page) not in HISTORY),
        *sorted((ROOT / "src" / "pasta_lm").rglob("*.py")),
    ],
    ids=name_of,
)
def test_words_that_the_glossary_rules_out_are_not_used(path: Path) -> None:
    words, allowed = unused_words()
    found = words.findall(allowed.sub("", prose(sentences(path))))
    assert not found


def test_what_the_paper_map_calls_done_exists() -> None:
    table = (ROOT / "docs" / "paper-map.md").read_text("utf-8")
    done = [row for row in table.splitlines() if re.search(r"\| (same|differs)\b", row)]
    assert done
    for path in {path for row in done for path in re.findall(r"`([\w./-]+\.\w+)`", row)}:
        assert any((root / path).exists() for root in (ROOT, ROOT / "src" / "pasta_lm")), path


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_the_files_that_a_page_names_exist(page: str) -> None:
    text = FENCE.sub("", (ROOT / page).read_text("utf-8"))
    there = [name_of(path) for path in (*ROOT.glob("*.*"), *ROOT.glob("[cdrst]*/**/*.*"))]
    for name in set(re.findall(r"`([\w./-]+\.(?:py|toml|sh|md|jsonl))`", text)):
        assert any(f"/{path}".endswith(f"/{name}") for path in there), name


def test_the_source_tree_in_the_architecture_page_is_up_to_date() -> None:
    subprocess.run([sys.executable, ROOT / "scripts" / "tree.py", "--check"], check=True)
