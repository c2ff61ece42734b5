"""Names and docstrings are plain: the nouns of the field, one name for one thing."""

from __future__ import annotations

import ast
import re
import tokenize
from collections import Counter
from pathlib import Path

from tests.test_docs import FENCE, ROOT
from tests.test_size import tree

SOURCES = sorted((ROOT / "src" / "pasta_lm").rglob("*.py"))
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
NAMELESS = {"one", "found", "given", "asked", "said"}
CLAUSE = re.compile(r"^(\w+) (what|who|whose)\b")
BOUND = re.compile(r"^_?(LEAST|MOST|LONGEST|SHORTEST|LARGEST|SMALLEST|FEWEST)_")

# A word that the project does not use: the phrases in which it is allowed.
WORDS = {
    "branch": "tag or branch",
    "chunk": "",
    "segment": "",
    "barrier": "",
    "ideal speedup": "",
    "sequence": "token sequence",
    "program": "computer program, evaluate programs",
    "agent": "",
    "worker": "worker process, worker processes",
    "twin": "",
    "rival": "",
    "lane": "",
    "drill": "",
    "yardstick": "",
}


def test_a_variable_is_named_by_a_noun_and_a_bound_is_called_minimum_or_maximum() -> None:
    for path in (*SOURCES, *(ROOT / "lab" / "pasta_lab").rglob("*.py")):
        nodes = list(ast.walk(tree(path)))
        names = [node for node in nodes if isinstance(node, ast.Name)]
        parameters = {node.arg for node in nodes if isinstance(node, ast.arg)}
        assert not NAMELESS & (parameters | {name.id for name in names}), path
        stored = [name.id for name in names if isinstance(name.ctx, ast.Store)]
        assert not [name for name in stored if BOUND.match(name)], path


def test_a_docstring_names_the_thing_and_no_clause_in_its_place() -> None:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = (node for path in SOURCES for node in ast.walk(tree(path)))
    texts = [ast.get_docstring(node) or "" for node in nodes if isinstance(node, kinds)]
    assert not [text.splitlines()[0] for text in texts if CLAUSE.match(text)]


def is_riddle(text: str) -> bool:
    return re.match(r"(Of|Do)\b|Return (how|where|which|why)\b", text) is not None


def test_no_docstring_and_no_comment_begins_as_a_riddle() -> None:
    riddles = []
    for path in SOURCES:
        with tokenize.open(path) as file:
            tokens = [*tokenize.generate_tokens(file.readline)]
        texts = [token.string.lstrip("#: ") for token in tokens if token.type == tokenize.COMMENT]
        statements = (node.value for node in ast.walk(tree(path)) if isinstance(node, ast.Expr))
        constants = (node.value for node in statements if isinstance(node, ast.Constant))
        texts += [text.strip() for text in constants if isinstance(text, str)]
        riddles += [f"{path}: {text.splitlines()[0]}" for text in filter(is_riddle, texts)]
    assert not riddles, "\n".join(riddles)


def test_a_class_name_exists_once() -> None:
    classes = (node for path in SOURCES for node in ast.walk(tree(path)))
    counts = Counter(node.name for node in classes if isinstance(node, ast.ClassDef))
    assert not [name for name, count in counts.items() if count > 1 and not name.startswith("_")]


def sentences(path: Path) -> str:
    """Return the docstrings, helps and messages of a module, or the prose of a page."""
    if path.suffix != ".py":
        return FENCE.sub("", path.read_text("utf-8"))
    constants = (node.value for node in ast.walk(tree(path)) if isinstance(node, ast.Constant))
    return "\n".join(value for value in constants if isinstance(value, str) and " " in value)


def test_words_with_another_name_here_are_not_used() -> None:
    allowed = [phrase for phrases in WORDS.values() for phrase in phrases.split(", ") if phrase]
    code = r"``.*?``|`[^`]*`|\"[^\"\n]*\"|\]\([^)]*\)|https?://\S+"
    for path in (*PAGES, *SOURCES):
        text = re.sub(r"^ +\w+: ", "", sentences(path), flags=re.MULTILINE)  # parameters
        text = re.sub(code, "", text, flags=re.DOTALL)
        text = re.sub(rf"\b({'|'.join(allowed)})s?\b", "", text, flags=re.IGNORECASE)
        assert not re.findall(rf"\b({'|'.join(WORDS)})s?\b", text, re.IGNORECASE), path
