"""Documentation is checked: examples run, commands parse, links and files exist."""

from __future__ import annotations

import ast
import doctest
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from functools import cache
from itertools import pairwise
from pathlib import Path
from unittest.mock import MagicMock, Mock

import datasets
import openai
import pytest
import typer.main

from pasta_lm import Pasta
from pasta_lm.cli import app
from pasta_lm.engines.local import loading
from pasta_lm.errors import ModelNotFoundError, PastaError, UsageError
from pasta_lm.learn.train import learner
from pasta_lm.models import export
from pasta_lm.models.names import BUILTIN, BUILTINS, PASTA_15B
from pasta_lm.parts.declared import PartsAnswer
from pasta_lm.serve.protocol import ChatCompletionRequest

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
NAMED_FILE = re.compile(r"`([\w.]+)`[^`\n]*:\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MAX_RESULT_CHARACTERS = 160


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def fences(page: Path, *languages: str) -> list[str]:
    blocks = FENCE.findall(page.read_text("utf-8"))
    return [body for language, body in blocks if language in languages]


def parts(line: str) -> list[list[str]]:
    """Return the words of each command of a line, without comment and variables."""
    split = [shlex.split(part, comments=True) for part in re.split(r"\s(?:&&|[|<&])\s", line)]
    for words in split:
        while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
            del words[0]
    return [words for words in split if words]


def commands(page: Path) -> list[list[str]]:
    """Return the commands in the blocks of a page, in their order."""
    shown = [line for line in fences(page, "console", "text") if "$ " in line]
    typed = re.findall(r"^\$ (.*)$", "".join(shown).replace("\\\n", ""), re.MULTILINE)
    scripts = "".join(fences(page, "sh", "bash")).replace("\\\n", "").splitlines()
    return [words for line in (*typed, *scripts) for words in parts(line)]


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text("utf-8"))


def inline_commands(page: Path) -> list[list[str]]:
    """Return the commands in the sentences of a page."""
    lines = re.findall(r"`(pasta(?:-lab)? [^`|…]+)`", prose(page))
    return [[word for word in words if word != "..."] for line in lines for words in parts(line)]


# --- examples


@pytest.mark.parametrize("page", ["docs/python.md", "docs/language.md"])
def test_python_examples_print_what_the_page_shows(page: str) -> None:
    session = "\n".join(body for body in fences(ROOT / page, "python") if ">>>" in body)
    assert session.count(">>>") >= 3
    test = doctest.DocTestParser().get_doctest(session, {}, page, page, 0)
    report: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.append)
    assert result.attempted
    assert not result.failed, "".join(report)


LOAD = cache(Pasta.from_pretrained)
PROGRAMS = {  # several cards have the same, but for the name of the model
    re.sub(r'(?<=from_pretrained\()"[^"]*"', f'"{BUILTIN}"', body): name_of(page)
    for page in PAGES
    for body in fences(page, "python")
    if re.search(r"^(from|import) (pasta_l|openai)", body, re.MULTILINE)
}


@pytest.fixture
def builtin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every name of a model stand for the built-in one, which is loaded once."""
    monkeypatch.setattr(Pasta, "from_pretrained", lambda *_, **__: LOAD(BUILTIN))


@pytest.mark.usefixtures("builtin")
@pytest.mark.parametrize("program", PROGRAMS, ids=PROGRAMS.get)
def test_a_program_of_a_page_runs(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai, "OpenAI", MagicMock())  # there is no server
    monkeypatch.chdir(tmp_path)
    exec(program, {})


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_block_of_json_is_an_object_or_one_a_line(page: Path) -> None:
    for body in fences(page, "json"):
        assert [json.loads(part) for part in re.split(r"\n(?=\{)", body.strip())]


def test_the_still_in_the_readme_is_what_pasta_play_prints() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    (still,) = re.findall(r"<!-- still.*?-->\n```text\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)
    command = [sys.executable, "-m", "pasta_lm", "play"]
    played = subprocess.run(command, check=True, capture_output=True, text=True)
    assert played.stdout.startswith(still)


# --- commands

COMMANDS = [
    (name_of(page), shlex.join(words))
    for page in PAGES
    for words in {tuple(words): words for words in (*commands(page), *inline_commands(page))}
]
COMMAND_LINE = typer.main.get_command(app)
TOOLS = {
    ".",
    "python3",
    "pip",
    "hf",
    "git",
    "cd",
    "curl",
    "echo",
    "mkdocs",
    "vllm",
    "llama-server",
    "docker",
}


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


@pytest.mark.parametrize(
    ("page", "command"), [pytest.param(*pair, id=": ".join(pair)) for pair in COMMANDS]
)
def test_a_documented_command_parses(
    page: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *arguments = shlex.split(command.partition(" '>' ")[0])
    if name == "pasta":
        assert not parse_error(arguments, capsys)
    elif name == "curl" and "/chat/completions" in command:
        ChatCompletionRequest.model_validate_json(arguments[arguments.index("-d") + 1])
    elif name.startswith(("scripts/", "runs/")):
        assert os.access(ROOT / name, os.X_OK)
    else:  # pasta-lab: lab/tests/test_peers.py
        assert name in READERS | TOOLS, "no test can vouch for this"


MADE = {">", "--out", "--trace", "--html", "--svg", "--records", "--page", "--plot"}
READERS = {"pasta", "pasta-lab", "python", "pytest"}
PATH = re.compile(r"[\w./-]+(?:/[\w./-]+|\.(?:gguf|gz|html|jsonl?|md|py|svg|toml|txt))")
MODELS = {"-m", "--model", "--baseline", "--untaught"}


def names_in(words: list[str]) -> tuple[set[str], set[str]]:
    """Return the files and models that a command reads, and those that it makes."""
    flags = dict(pairwise(words))
    made = {flags[flag] for flag in MADE & flags.keys()}
    made |= {*words[3:4]} if words[:2] == ["pasta", "export"] else set()
    read = {flags[flag] for flag in MODELS & flags.keys() if words[0] != "python"}
    read |= {*words[2:3]} if words[:2] in (["pasta", "teach"], ["pasta", "export"]) else set()
    values = (word.rpartition("=")[2].removeprefix("@") for word in words[1:])
    return {*filter(PATH.fullmatch, values), *read} - made, made


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_a_command_reads_is_there_or_made_before_or_explained_on_the_page(page: Path) -> None:
    text, made = prose(page), {"path/to"}
    for words in (*commands(page), *inline_commands(page)):
        read, makes = names_in(words)
        for name in read - {*BUILTINS, PASTA_15B} if words[0] in READERS else ():
            word = re.match(r"[A-Z]+(?=\.|$)", name)
            is_explained = f"`{name}`" in text or word and re.search(rf"\b{word[0]}\b", text)
            is_made = any(Path(name).is_relative_to(place) for place in made)
            assert is_made or is_explained or (ROOT / name).exists(), (name, words)
        made |= makes


class LoadsError(Exception):
    """A command has passed its checks and begins to load a model."""


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "$ pasta " in page.read_text("utf-8")], ids=name_of
)
def test_a_command_passes_all_checks_before_it_loads_a_model_and_reads_each_recipe_shown(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in (loading, export, learner):
        monkeypatch.setattr(place, "load_pretrained", Mock(side_effect=LoadsError))
    monkeypatch.setattr(datasets, "load_dataset", Mock(side_effect=LoadsError))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    for name in ("corpora", "lab", "runs", "src"):
        (tmp_path / name).symlink_to(ROOT / name)
    files = dict(NAMED_FILE.findall(page.read_text("utf-8")))
    for name, body in files.items():
        (tmp_path / name).write_text(body, "utf-8")
    typed = [words for words in commands(page) if words[0] == "pasta"]
    used = {word for words in typed for word in words}
    assert {*fences(page, "toml")} <= {files[name] for name in files.keys() & used}
    for words in typed:
        try:
            COMMAND_LINE.main(words[1:], "pasta", standalone_mode=False)
        except (ModelNotFoundError, LoadsError):
            continue  # a command before it makes the model, or it is the reader's own
        except UsageError as error:
            pytest.fail(f"{words}: {error}")
        except PastaError:
            continue  # the same of a file


def test_an_unknown_flag_does_not_parse(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(COMMANDS) > 40
    assert parse_error(["run", "--no-such-flag"], capsys)


def test_the_reference_pages_are_up_to_date() -> None:
    subprocess.run([sys.executable, ROOT / "scripts" / "reference_pages.py", "--check"], check=True)


# --- links and files


def anchors(page: Path) -> set[str]:
    slugs: set[str] = set()
    for heading in re.findall(r"^#+ +(.*?) *#*$", prose(page), re.MULTILINE):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        number = 0
        while (anchor := f"{slug}-{number}" if number else slug) in slugs:
            number += 1
        slugs.add(anchor)
    return slugs


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_within_the_project_lead_to_a_file_and_to_a_heading(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)[^)]*\)", prose(page)):
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
    folders += "|view|learn|measure|serve|cli"
    file = rf"`((?:{folders})/[\w./-]+\.(?:py|md|toml|sh|jsonl))`(?! of\s+commit)"
    for name in set(re.findall(file, prose(page))):
        assert any((root / name).exists() for root in roots), name


@pytest.mark.parametrize("page", sorted((*PAGES, *map(ROOT.joinpath, HISTORY))), ids=name_of)
def test_a_page_that_names_a_commit_says_how_a_clone_of_one_commit_gets_it(page: Path) -> None:
    commits = re.findall(r"\b(?=\d*[a-f])(?=[a-f]*\d)[\da-f]{7,40}\b", prose(page))
    assert not commits or "`git fetch --unshallow`" in prose(page), commits


@pytest.mark.usefixtures("builtin")
def test_the_notebook_was_run_from_top_to_bottom_and_its_fields_are_those_of_now() -> None:
    cells = json.loads((ROOT / "docs" / "first-minute.ipynb").read_text("utf-8"))["cells"]
    codes = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in codes] == [*range(1, len(codes) + 1)]
    kinds = [output["output_type"] for cell in codes for output in cell["outputs"]]
    assert {*kinds} == {"stream", "execute_result"}
    session: dict[str, PartsAnswer] = {}
    for cell in codes[:2]:
        exec("".join(cell["source"]), session)
    shown = "".join(codes[1]["outputs"][0]["data"]["text/plain"])
    assert session["booking"].data == ast.literal_eval(shown)


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
    for line in prose(ROOT / page).splitlines():
        if line.startswith("|"):
            assert ";" not in line, line
        else:
            assert len(line) <= MAX_RESULT_CHARACTERS, line
