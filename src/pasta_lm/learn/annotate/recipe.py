"""The recipe of ``pasta annotate``, and the rows of its source.

A source is a file, or a data set of Hugging Face, read as a stream. Each row becomes a prompt with
an answer, or is skipped with a reason. Of a plain conversation the first exchange is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal

from pasta_lm.engines.servers.dialects import server_urls
from pasta_lm.errors import InputError, MissingExtraError, PastaError, RemoteError, UsageError
from pasta_lm.journal import Row, parse_unique, read_lines
from pasta_lm.language.document import Document, parse
from pasta_lm.language.parser import Form
from pasta_lm.learn.annotate.filters import FilterConfig
from pasta_lm.learn.annotate.own_answers import USABLE, AnswerConfig, digest
from pasta_lm.learn.annotate.teacher import read_prompt
from pasta_lm.learn.chat.client import Endpoint
from pasta_lm.learn.data import THOUGHT, Turn, joined, messages_of, text_of, unread
from pasta_lm.learn.data.annotated import Record, answer_of
from pasta_lm.models.checkpoint import first_line
from pasta_lm.recipe import check_choice, check_not_ignored, check_one_of

TEACHER: Final = "teacher"
MARKDOWN_RULE: Final = "markdown_rule"
COLUMNS = {
    **dict.fromkeys(("slimorca", "sharegpt"), ("conversations",)),
    "annotated": ("messages", "response", THOUGHT), "messages": ("messages",),
    "alpaca": ("instruction", "input", "output"), "dolly": ("instruction", "context", "response"),
    "pairs": ("prompt", "answer", "reasoning"),
}  # fmt: skip
"""The columns of data sets; where none is named, all of a row are read."""
TAGGED = {"response": Form.WRITTEN, "annotated": Form.ANNOTATOR}
PLAIN = ("output", "answer", "completion")  # Keys of an answer beside its prompt.


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConfig:
    """The source of the answers to annotate."""

    file: str | None = None  # JSONL, gzipped if it ends in ``.gz``.
    hub: str | None = None  # Id of a data set of Hugging Face, read as a stream.
    split: str = "train"  # Split of a data set of the hub.
    revision: str | None = None
    """Commit, tag or branch of a data set of the hub; None: its newest state."""
    columns: str | None = None
    """A known layout, of which other keys are not read; None: all keys are."""
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
    temperature: float = 0.0  # Sampling temperature of its replies.


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
            model = {"model": teacher.model, "temperature": teacher.temperature}
            tables["teacher"] = model | {"prompt": read_prompt().label}
        return {"annotator": self.annotator, **tables}


@dataclass(frozen=True, slots=True)
class SourceRow:
    """One answer to annotate, or the reason why it is skipped."""

    id: str  # The id of its row, or a hash of its texts.
    turns: tuple[Turn, ...] = ()  # Its messages, the user's last.
    answer: str = ""
    skipped: str | None = None
    reasoning: str | None = None  # The thought before the answer.

    @property
    def prompt(self) -> str:
        """Return the texts of its messages, as the annotator is shown them."""
        return joined(self.turns)

    def record(self, document: Document, source: str) -> Record:
        *before, last = self.turns
        return Record(self.id, last["content"], document, source, self.reasoning, tuple(before))


def read_source(config: SourceConfig) -> Iterator[SourceRow]:
    if config.hub is not None:
        rows = _hub_rows(config.hub, config.split, config.revision)
    else:
        rows = _json_rows(Path(config.file or ""))
    return (_source_row(row, config.columns) for row in rows)


def _source_row(row: Any, columns: str | None) -> SourceRow:
    if not isinstance(row, Mapping):
        return SourceRow(digest(repr(row)), skipped="not_json")
    name = None if row.get("id") in (None, "") else str(row["id"])
    keys = row if columns is None else ("id", *COLUMNS[columns])
    try:
        turns, answer, thought, key = _exchange({k: row[k] for k in keys if k in row})
    except PastaError:
        id = name or digest(repr(sorted(row.items(), key=str)))
        return SourceRow(id, skipped="no_columns")
    prompt = joined(turns)
    content = f"{prompt}\0{answer}"
    if any("\ud800" <= char <= "\udfff" for char in f"{name}{content}{thought}"):  # half a pair
        return SourceRow(digest(content), skipped="not_unicode")
    reason = key and f"unread_{key}"
    if not prompt.strip() or not answer.strip():
        reason = "no_answer" if prompt.strip() else "no_prompt"
    return SourceRow(name or digest(content), tuple(turns), answer, reason, thought)


def _exchange(row: Row) -> tuple[list[Turn], str, str | None, str | None]:
    """Return the messages of a prompt, its plain answer, the thought before it, an unread key."""
    turns, thought = messages_of(row), text_of(row, THOUGHT) or text_of(row, "reasoning") or None
    key = next((name for name in (*TAGGED, *PLAIN) if row.get(name) is not None), None)
    if key in TAGGED:
        answer = parse(text_of(row, key), TAGGED[key]).plain_text
    elif key is not None:
        answer = text_of(row, key)
    else:
        end = [*(turn["role"] for turn in turns), "assistant"].index("assistant")
        last, turns = [*turns, {"content": ""}][end], turns[:end]
        answer, thought = answer_of(last).plain_text, last.get(THOUGHT, thought)
    if turns[-1]["role"] != "user" if turns else key is None:
        raise InputError("it is no question with an answer")
    read = {key or THOUGHT: answer, THOUGHT: thought, "reasoning": thought}
    return turns, answer, thought, unread(row, turns, read)


def _json_rows(path: Path) -> Iterator[Any]:
    for line in filter(str.strip, read_lines(path)):
        try:
            yield parse_unique(line)
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
        raise UsageError(f"{what} cannot be read: {first_line(exc)}", hint=hint) from exc
    except Exception as exc:  # whatever its libraries for files and networks raise
        hint = "run the same command again when the hub can be reached"
        raise RemoteError(f"{what} cannot be read: {first_line(exc)}", hint=hint) from exc
