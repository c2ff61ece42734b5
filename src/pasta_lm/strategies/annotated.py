"""Read annotated answers from JSON lines; broken lines are reported, the others are read."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pasta_lm.errors import InputError, PastaError
from pasta_lm.language.document import Document, parse
from pasta_lm.language.parser import Form


@dataclass(frozen=True, slots=True)
class AnnotatedAnswer:
    """One prompt and its annotated answer."""

    id: str
    prompt: str
    document: Document
    """Missing lengths are counted later, with the tokenizer of the model."""
    source: str = ""


class Problem(NamedTuple):
    """A line that could not be read."""

    line: int
    reason: str
    hint: str | None = None


class ReadResult(NamedTuple):
    """The answers and the broken lines of a file."""

    answers: list[AnnotatedAnswer]
    problems: list[Problem]


def read_annotated(
    path: Path, limit: int | None = None, *, needs_prompt: bool = False
) -> ReadResult:
    """Read a JSONL file of annotated answers, gzipped if its name ends in ``.gz``.

    A row has the written form under ``response`` or the annotator form under ``annotated``; its
    prompt under ``messages``, ``prompt`` or ``instruction``. Without an ``id`` its line is its id.

    Args:
        path: The file.
        limit: Maximum number of answers.
        needs_prompt: Whether a row without a prompt is a problem.

    Raises:
        InputError: there is no such file, or it is not a text file.
    """
    found = ReadResult([], [])
    for number, line in enumerate(_lines(path), start=1):
        if limit is not None and len(found.answers) >= limit:
            break
        if not line.strip():
            continue
        try:
            answer = _answer(json.loads(line), number)
            if needs_prompt and not answer.prompt:
                raise InputError("no prompt: no 'messages', 'prompt' or 'instruction'")
            found.answers.append(answer)
        except json.JSONDecodeError as exc:
            found.problems.append(Problem(number, f"not JSON: {exc.msg} at column {exc.colno}"))
        except PastaError as exc:
            found.problems.append(Problem(number, exc.message.split("\n")[0], exc.hint))
    return found


def _lines(path: Path) -> Iterator[str]:
    opening = gzip.open if path.name.endswith(".gz") else open
    try:
        with opening(path, "rt", encoding="utf-8") as file:
            yield from file
    except FileNotFoundError as exc:
        raise InputError(f"no such file: {path}") from exc
    except (OSError, EOFError, UnicodeDecodeError) as exc:
        raise InputError(f"{path} cannot be read: {exc}") from exc


def _answer(row: Any, number: int) -> AnnotatedAnswer:
    if not isinstance(row, dict):
        raise InputError("not a JSON object")
    if isinstance(row.get("response"), str):
        document = parse(row["response"], Form.WRITTEN)
    elif isinstance(row.get("annotated"), str):
        document = parse(row["annotated"], Form.ANNOTATOR)
    else:
        raise InputError("no 'response' (written form) and no 'annotated' (annotator form)")
    if not document.plain_text:
        raise InputError("the answer is empty")
    name = number if row.get("id") in (None, "") else row["id"]
    return AnnotatedAnswer(str(name), _prompt(row), document, str(row.get("source") or ""))


def _prompt(row: dict[str, Any]) -> str:
    if row.get("messages") is not None:
        return _prompt_of_messages(row["messages"])
    for key in ("prompt", "instruction"):
        if isinstance(row.get(key), str):
            return str(row[key])
    return ""


def _prompt_of_messages(messages: Any) -> str:
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        raise InputError("'messages' must be a list of objects")
    if any(one.get("role", "user") not in ("user", "system") for one in messages):
        raise InputError(
            "'messages' must be the user's: conversations of several turns are not read"
        )
    texts = [one.get("content") for one in messages]
    if not all(isinstance(text, str) for text in texts):
        raise InputError("'messages' must have texts under 'content'")
    return "\n\n".join(texts)
