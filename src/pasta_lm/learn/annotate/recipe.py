"""The recipe of ``pasta annotate``, and the rows of its source.

A source is a file, or a data set of Hugging Face, read as a stream. Each row becomes a prompt with
an answer, or is skipped with a reason. Of a conversation the first exchange is taken.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, Literal

from pasta_lm.engines.servers.dialects import server_urls
from pasta_lm.errors import MissingExtraError, PastaSyntaxError, RemoteError, UsageError
from pasta_lm.journal import read_lines
from pasta_lm.language.document import parse
from pasta_lm.learn.annotate.filters import FilterConfig
from pasta_lm.learn.annotate.own_answers import USABLE, AnswerConfig
from pasta_lm.learn.annotate.teacher import read_prompt
from pasta_lm.learn.chat.client import Endpoint
from pasta_lm.recipe import check_choice, check_not_ignored, check_one_of

TEACHER: Final = "teacher"
MARKDOWN_RULE: Final = "markdown_rule"
NOT_JSON, NO_COLUMNS, NOT_UNICODE = "not_json", "no_columns", "not_unicode"
NO_PROMPT, NO_ANSWER = "no_prompt", "no_answer"

ASSISTANTS = {"gpt", "assistant", "chatgpt", "bing", "bard"}
"""Names of the role whose turn is the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConfig:
    """The source of the answers to annotate."""

    file: str | None = None  # JSONL, gzipped if it ends in ``.gz``.
    hub: str | None = None  # Id of a data set of Hugging Face, read as a stream.
    split: str = "train"  # Of a data set of the hub.
    revision: str | None = None
    """Commit, tag or branch of a data set of the hub; None: its newest state."""
    columns: str | None = None  # One of ``COLUMNS``; None: detected in each row.
    name: str | None = None  # The ``source`` of each record; None: the file's name or the hub's id.

    def __post_init__(self) -> None:
        check_one_of("source", file=self.file, hub=self.hub)
        is_ignored = self.revision is not None and self.hub is None
        check_not_ignored("source.revision", is_ignored, "it belongs to source.hub")
        if self.columns is not None:
            check_choice("source.columns", self.columns, list(COLUMNS))

    @property
    def label(self) -> str:
        return self.name or self.hub or Path(self.file or "").name


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherConfig(Endpoint):
    """The model that annotates."""

    TABLE = "teacher"
    temperature: float = 0.0  # Of its replies.


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputConfig:
    """The folder of the journal and of all files made from it."""

    folder: str  # A new folder, or that of the run to continue.


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotateConfig:
    """A whole recipe."""

    source: SourceConfig | None = None  # The answers; None: those of ``answers``.
    answers: AnswerConfig | None = None
    """A model that answers instructions first; None: ``source`` has the answers."""
    output: OutputConfig
    annotator: Literal["teacher", "markdown_rule"] = "teacher"
    """``teacher``, a model on a server, or ``markdown_rule``, a heuristic that reads layout and
    question, not meaning."""
    teacher: TeacherConfig | None = None
    filters: FilterConfig = field(default_factory=FilterConfig)

    def __post_init__(self) -> None:
        if (self.source is None) == (self.answers is None):
            raise UsageError("a recipe needs exactly one of [source] and [answers]")
        if self.annotator == TEACHER and self.teacher is None:
            raise UsageError("annotator 'teacher' needs a table [teacher]", hint="with model")
        is_ignored = self.annotator != TEACHER and self.teacher is not None
        check_not_ignored("[teacher]", is_ignored, f"annotator is {self.annotator!r}")

    @property
    def rows(self) -> SourceConfig:
        if self.source is not None:
            return self.source
        assert self.answers is not None
        file = str(Path(self.answers.out) / USABLE)
        return SourceConfig(file=file, columns="pairs", name="own answers")

    def taught_by(self, addresses: str) -> AnnotateConfig:
        """Return the recipe with the teacher on other servers, whose URLs a comma separates."""
        if self.teacher is None:
            reason = f"annotator {self.annotator!r} cannot use --engine: it asks no model"
            raise UsageError(reason, hint="leave it out")
        urls = ",".join(f"{url}/v1" for url in server_urls(addresses))
        if not urls:
            raise UsageError("no server is named", hint="for example http://localhost:8000")
        return replace(self, teacher=replace(self.teacher, base_url=urls))

    def settings(self) -> dict[str, object]:
        """Return the settings that must not change while an output folder is filled.

        Servers, time-outs and the number of requests in flight may change between runs.
        """
        tables = {"source": asdict(self.rows), "filters": asdict(self.filters)}
        if (teacher := self.teacher) is not None:
            own = {"model": teacher.model, "temperature": teacher.temperature}
            tables["teacher"] = own | {"prompt": read_prompt().label}
        return {"annotator": self.annotator, **tables}


@dataclass(frozen=True, slots=True)
class SourceRow:
    """One answer to annotate, or the reason why it is skipped."""

    id: str  # The row's own, or a hash of its texts.
    prompt: str  # The user's turn, preceded by the system's.
    answer: str
    skipped: str | None = None


def read_source(config: SourceConfig) -> Iterator[SourceRow]:
    if config.hub is not None:
        rows = _hub_rows(config.hub, config.split, config.revision)
    else:
        rows = _json_rows(Path(config.file or ""))
    return (_source_row(row, config.columns) for row in rows)


def _source_row(row: Any, columns: str | None) -> SourceRow:
    if not isinstance(row, Mapping):
        return SourceRow(digest(repr(row)), "", "", NOT_JSON)
    detected = (name for name, (keys, _) in COLUMNS.items() if keys <= set(row))
    name = columns or next(detected, None)
    exchange = COLUMNS[name][1](row) if name else None
    prompt, answer = exchange or ("", "")
    content = f"{prompt}\0{answer}" if exchange else repr(sorted(row.items(), key=str))
    id = digest(content) if row.get("id") in (None, "") else str(row["id"])
    if exchange is None:
        return SourceRow(id, "", "", NO_COLUMNS)
    if any("\ud800" <= char <= "\udfff" for char in id + prompt + answer):  # half a pair
        return SourceRow(digest(content), "", "", NOT_UNICODE)
    missing = NO_PROMPT if not prompt.strip() else NO_ANSWER if not answer.strip() else None
    return SourceRow(id, prompt, answer, missing)


Exchange = tuple[str, str]


def _turns(row: Mapping[str, Any], key: str, role: str, text: str) -> Exchange | None:
    turns = row.get(key)
    if isinstance(turns, Mapping):  # a sequence of records, stored column by column
        roles, texts = turns.get(role), turns.get(text)
        if not (isinstance(roles, list) and isinstance(texts, list)):
            return None
        turns = [{role: who, text: content} for who, content in zip_longest(roles, texts)]
    before: list[str] = []
    for turn in turns if isinstance(turns, list | tuple) else [None]:
        if not isinstance(turn, Mapping) or not isinstance(turn.get(text), str):
            return None
        if turn.get(role) in ASSISTANTS:
            return "\n\n".join(before), turn[text]
        if turn[text].strip():
            before.append(turn[text])
    return "\n\n".join(before), ""


def _alpaca(row: Mapping[str, Any]) -> Exchange | None:
    parts = [row.get(key) or "" for key in ("instruction", "input", "output")]
    if not all(isinstance(part, str) for part in parts):
        return None
    return "\n\n".join(part for part in parts[:2] if part.strip()), parts[2]


def _pairs(row: Mapping[str, Any]) -> Exchange | None:
    prompt, answer = row.get("prompt"), row.get("answer")
    return (prompt, answer) if isinstance(prompt, str) and isinstance(answer, str) else None


def _annotated(row: Mapping[str, Any]) -> Exchange | None:
    answer, turns = row.get("response"), _turns(row, "messages", "role", "content")
    if not isinstance(answer, str) or turns is None:
        return None
    try:
        return "\n\n".join(filter(None, turns)), parse(answer).plain_text
    except PastaSyntaxError:
        return None


_conversations = partial(_turns, key="conversations", role="from", text="value")
COLUMNS: dict[str, tuple[set[str], Callable[[Mapping[str, Any]], Exchange | None]]] = {
    "slimorca": ({"conversations"}, _conversations),
    "sharegpt": ({"conversations"}, _conversations),
    "annotated": ({"messages", "response"}, _annotated),  # before the plain messages
    "messages": ({"messages"}, partial(_turns, key="messages", role="role", text="content")),
    "alpaca": ({"instruction", "output"}, _alpaca),
    "pairs": ({"prompt", "answer"}, _pairs),
}
"""Column layouts of data sets: the columns by which they are detected, and their readers."""


def _json_rows(path: Path) -> Iterator[Any]:
    for line in read_lines(path):
        if not line.strip():
            continue
        try:
            yield json.loads(line)
        except ValueError:
            yield line


def _hub_rows(name: str, split: str, revision: str | None) -> Iterator[Any]:
    if not find_spec("datasets"):
        raise MissingExtraError(f"reading {name} from Hugging Face", "annotate")
    import datasets

    what = f"the data set {name} (split {split}, revision {revision or 'newest'})"
    try:
        yield from datasets.load_dataset(name, split=split, revision=revision, streaming=True)
    except (FileNotFoundError, ValueError) as exc:
        hint = "check source.hub, source.split and source.revision; a private one needs HF_TOKEN"
        raise UsageError(f"{what} cannot be read: {_first_line(exc)}", hint=hint) from exc
    except Exception as exc:  # whatever its libraries for files and networks raise
        hint = "run the same command again when the hub can be reached"
        raise RemoteError(f"{what} cannot be read: {_first_line(exc)}", hint=hint) from exc


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
