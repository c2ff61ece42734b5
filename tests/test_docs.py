"""Hold the documents to what exists: examples run, commands parse, links lead somewhere."""

from __future__ import annotations

import doctest
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("corpora/*/*.md")])

FENCES = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
SESSION = "\n".join(body for language, body in FENCES if language == "python" and ">>>" in body)
LINES = [
    line.removeprefix("$ ")
    for language, body in FENCES
    if language == "console"
    for line in body.splitlines()
    if line.startswith("$ ")
]
COMMANDS = sorted({part for line in LINES for part in re.split(r"\s(?:&&|\||>|<)\s", line)})


def test_the_readme_has_examples_and_commands_to_check() -> None:
    assert SESSION.count(">>>") >= 3
    assert any(command.startswith("pasta ") for command in COMMANDS)


def test_the_examples_of_the_readme_print_what_it_says() -> None:
    session = doctest.DocTestParser().get_doctest(SESSION, {}, "README.md", "README.md", 0)
    report: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(session, out=report.append)
    assert result.attempted
    assert not result.failed, "".join(report)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_readme_parses(command: str) -> None:
    name, *arguments = shlex.split(command, comments=True)
    if name == "pasta":
        # --help is answered after the whole line was parsed: an unknown flag fails before it.
        code = "from pasta_lm.cli import main; main()"
        subprocess.run(
            [sys.executable, "-c", code, *arguments, "--help"], check=True, capture_output=True
        )
    elif name.startswith("scripts/"):
        assert os.access(ROOT / name, os.X_OK)
    else:
        assert name in {"pip", "git", "cd"}, "not a command that we can vouch for"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_link_within_the_project_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text("utf-8")):
        assert "://" in target or (page.parent / target).exists(), target


def test_what_the_paper_map_calls_done_exists() -> None:
    table = (ROOT / "docs" / "paper-map.md").read_text("utf-8")
    done = [row for row in table.splitlines() if re.search(r"\| (same|differs)\b", row)]
    assert done
    for path in {path for row in done for path in re.findall(r"`([\w./-]+\.\w+)`", row)}:
        assert any((root / path).exists() for root in (ROOT, ROOT / "src" / "pasta_lm")), path


def test_the_tree_in_the_readme_is_the_tree() -> None:
    subprocess.run([sys.executable, ROOT / "scripts" / "tree.py", "--check"], check=True)
