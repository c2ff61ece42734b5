"""``pasta fill`` and ``ask``: fields of a schema, answers to questions; of one document or many."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from json import loads
from pathlib import Path
from pkgutil import resolve_name
from tempfile import NamedTemporaryFile
from typing import Annotated

import typer

from pasta_lm.cli import flags, terminal
from pasta_lm.cli.flags import option, require_engine
from pasta_lm.cli.run import (
    EXAMPLES,
    FILE_NAME,
    check_text,
    check_trace,
    checked,
    load_model,
    read_prompts,
)  # fmt: skip
from pasta_lm.cli.thread_view import live_threads, print_figures
from pasta_lm.documents import Columns, JobFile, has_documents
from pasta_lm.engines import Engine
from pasta_lm.engines.schemas import PydanticModel, Schema, schema_of
from pasta_lm.errors import InputError, PastaError, UsageError
from pasta_lm.models.names import BUILTIN
from pasta_lm.strategies.fields import MAX_FIELDS, SMALLEST, Part, fields_of
from pasta_lm.strategies.many import Job, Tally
from pasta_lm.strategies.model import Pasta, Watch
from pasta_lm.strategies.parts import PartsAnswer, check_fields
from pasta_lm.strategies.questions import check_choices
from pasta_lm.strategies.requests import Options, sampling_params
from pasta_lm.strategies.spans import spans_of
from pasta_lm.strategies.wanted import A, Wanted, instance

DOCUMENTS = (".jsonl", ".jsonl.gz", ".csv", ".txt", ".md")  # names of files, also of missing ones
Out = Annotated[
    Path | None, option("--out OUT", "Rows of many documents, .jsonl or .csv; continued if begun.")
]
ReviewBelow = Annotated[
    tuple[float, Path] | None,
    option("--review-below P REVIEW", "Also write the rows with a field of less confidence."),
]


def fill(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE|PROMPT", help="Documents, and what stands above each."),
    ] = None,
    file: flags.Files = None,
    schema: Annotated[
        str | None,
        option("--schema SCHEMA", "FILE.json, 'name, year int' or module:Class. [required]"),
    ] = None,
    after: Annotated[
        list[str] | None,
        option("--after NAME=NAME[,NAME]", "Fields that a field waits for and sees; repeatable."),
    ] = None,
    model: flags.Model = None, dtype: flags.Dtype = None, device: flags.Device = None,
    threads: flags.Threads = None,
    max_tokens: flags.MaxTokens = 1024, temperature: flags.Temperature = None,
    repetition_penalty: flags.RepetitionPenalty = None,
    presence_penalty: flags.PresencePenalty = None,
    frequency_penalty: flags.FrequencyPenalty = None, seed: flags.Seed = 0,
    engine: flags.Engine = None, json: flags.Json = False, trace: flags.Trace = None,
    out: Out = None, review_below: ReviewBelow = None, limit: flags.Limit = None,
) -> None:  # fmt: skip
    """Fill the fields of a schema at the same time, with any model.

    Each field is a thread that sees the prompt and its own key. The object is printed as JSON, and
    matches the schema: a JSON schema in a file, a class of pydantic in a module, or names, each
    with a type or none: str, int, float, bool, list (of texts). Of several files each gives an
    object in a line.

    With --out of many documents: FILE.jsonl or - (rows with a text or messages, and an id),
    FILE.csv (a column text), text files or a folder of them. Each gives a row, in their order; the
    same command continues where it stopped. A document that fails is a row with its error.
    """
    servers = require_engine(engine)
    if schema is None:
        raise UsageError("there is no schema", hint=EXAMPLES["fill"])
    settings = checked(
        max_tokens=max_tokens, temperature=temperature, repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty, frequency_penalty=frequency_penalty, seed=seed,
        max_blocks=MAX_FIELDS,
    )  # fmt: skip
    wanted, waits = _schema(schema), _waits(after or ())
    prompt, files = _split(words or (), file or ())
    many = Many.of(out, files, review_below, limit, one_answer=json or trace)
    texts = [] if many else read_prompts("fill", prompt, files)
    check_trace(trace, len(texts))
    try:
        check_fields(form := schema_of(wanted), waits)
    except UsageError as exc:
        place = schema if isinstance(wanted, Mapping) else "--schema"
        sign = "," if exc.message.startswith("field ") else ":"
        raise UsageError(f"{place}{sign} {exc.message}", hint=exc.hint) from exc
    load = partial(load_model, model, servers, dtype=dtype, device=device)
    check = None if isinstance(wanted, str | Mapping) else partial(instance, schema=wanted)
    if many is not None:
        columns = {field.name: field.path for field in fields_of(form)}
        known = {"schema": form, "after": waits, **_known(model, dtype, settings)}
        want = lambda loaded: loaded.filling(form, after=waits, **settings)  # noqa: E731
        return many.run(columns, known, load, want, instruction=prompt, check=check)
    decode = partial(load().fill, schema=form, after=waits, **settings)
    if prompt and files:  # offsets are of the file
        decode = partial(_filled_below, decode, fields_of(form), len(f"{prompt}\n\n"))
    answers = _print_each(texts, decode, trace, as_json=json)
    if check is not None:
        for answer in answers:
            check(answer)


def ask(
    document: Annotated[Path, typer.Argument(metavar="DOCUMENT", help="A file, or - for stdin.")],
    questions: Annotated[
        list[str], typer.Argument(metavar="QUESTIONS", help="Questions, or a file, one a line.")
    ],
    choices: Annotated[
        str | None, option("--choices A,B,C", "Each answer is one of these, scored in one step.")
    ] = None,
    model: flags.Model = None, dtype: flags.Dtype = None, device: flags.Device = None,
    max_tokens: flags.MaxTokens = 1024, temperature: flags.Temperature = None,
    repetition_penalty: flags.RepetitionPenalty = None,
    presence_penalty: flags.PresencePenalty = None,
    frequency_penalty: flags.FrequencyPenalty = None, seed: flags.Seed = 0,
    engine: flags.Engine = None, json: flags.Json = False, trace: flags.Trace = None,
    out: Out = None, review_below: ReviewBelow = None, limit: flags.Limit = None,
) -> None:  # fmt: skip
    """Answer many questions about one document at the same time.

    Each question is a thread that sees the document and nothing of the others. A single QUESTION
    that exists as a file, or looks like the name of one, is a file of questions. With --out
    DOCUMENT may be many, as for pasta fill.
    """
    servers = require_engine(engine)
    many = Many.of(out, [document], review_below, limit, one_answer=json or trace)
    texts, lines = [] if many else read_prompts("ask", None, [document]), _questions(questions)
    check_trace(trace, len(texts))
    settings = checked(
        max_tokens=max_tokens, temperature=temperature, repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty, frequency_penalty=frequency_penalty, seed=seed,
        max_blocks=MAX_FIELDS,
    )  # fmt: skip
    members = [] if choices is None else [text.strip() for text in choices.split(",")]
    if choices is not None:
        check_choices(members, sampling_params(None, settings))
    load = partial(load_model, model, servers, dtype=dtype, device=device)
    if many is not None:
        columns = {line: (index,) for index, line in enumerate(lines)}
        if len(columns) < len(lines):
            raise UsageError("a question stands twice", hint="ask it once")
        known = {"questions": lines, "choices": members, **_known(model, dtype, settings)}
        want = lambda loaded: loaded.asking(lines, choices=members, **settings)  # noqa: E731
        return many.run(columns, known, load, want)
    decode = partial(load().ask, questions=lines, choices=members, **settings)
    _print_each(texts, decode, trace, as_json=json, questions=lines)


@dataclass(frozen=True, slots=True)
class Many:
    """The flags of a job: many documents, and the file of their rows."""

    out: Path
    files: Sequence[Path]
    review_below: tuple[float, Path] | None
    limit: int | None

    @classmethod
    def of(
        cls, out: Path | None, files: Sequence[Path], review_below: tuple[float, Path] | None,
        limit: int | None, *, one_answer: object,
    ) -> Many | None:  # fmt: skip
        """Check the flags; None if they are of no job."""
        if out is None:
            if rows := [file for file in files if has_documents(file)]:
                hint = f"--out {rows[0].with_suffix('').name}-filled.jsonl"
                raise UsageError(f"{rows[0]} has many documents: name a file of rows", hint=hint)
            if review_below or limit:
                raise UsageError("--review-below and --limit are for --out", hint="add it")
            return None
        if one_answer:
            reason = "--json and --trace are of one answer; the rows of --out are JSON"
            raise UsageError(reason, hint="leave them out")
        review = [] if review_below is None else [review_below[1]]
        if out.suffix not in (".jsonl", ".csv") or any(file.suffix != ".jsonl" for file in review):
            reason = "--out ends in .jsonl or .csv, and the file of --review-below in .jsonl"
            raise UsageError(reason, hint="--out filled.jsonl")
        if not files and sys.stdin.isatty():
            raise UsageError("there are no documents", hint=EXAMPLES["many"])
        found = [*_documents(files or [Path(terminal.STDIN)], out)]
        places = [path.resolve() for path in (out, *review, *found)]
        if len({*places}) < len(places):
            raise UsageError("a file is named twice", hint="rows go to a file of their own")
        return cls(out, found, review_below, limit)

    def run(
        self, columns: Columns, settings: Mapping[str, object], load: Callable[[], Pasta],
        want: Callable[[Pasta], Wanted[A]], *, instruction: str | None = None,
        check: Callable[[PartsAnswer], object] | None = None,
    ) -> None:  # fmt: skip
        """Do the job; at its end an error tells how many documents failed."""
        began_s, below = time.monotonic(), self.review_below
        out = JobFile(self.out, columns, has_confidence=below is not None)

        def begin() -> tuple[Engine, Wanted[A]]:
            loaded = load()
            return loaded.engine, want(loaded)

        with terminal.interruptible(), _on_disk(self.files) as files:
            job = Job(files, out, settings, instruction, self.limit, check)
            with closing(job.run(begin)) as tallies:
                tally, began_s = next(tallies), time.monotonic()
                num_before = tally.num_rows
                with terminal.bars() as show:
                    for _ in tallies:
                        rate = (tally.num_rows - num_before) / (time.monotonic() - began_s)
                        note = f"{rate:.2g} a second"
                        if not terminal.has_bars():
                            note += f", {(tally.total - tally.num_rows) / rate / 60:.0f} min left"
                        show("documents", tally.num_rows, tally.total, note)
            if below is not None:
                num = out.write_review(*below)
                terminal.say(f"{num} rows to be reviewed in {below[1]}")
        self._report(tally, tally.num_rows - num_before, time.monotonic() - began_s)

    def _report(self, tally: Tally, num_new: int, wall_s: float) -> None:
        rate = f" in {wall_s:.0f} s ({num_new / wall_s:.2g} a second)" if num_new else ""
        terminal.say(f"{self.out}: {tally.num_rows} of {tally.total} rows, {num_new} new{rate}")
        cut = f"a limit cut parts of {tally.num_cut} documents, named as unfinished in their rows"
        if tally.num_failed:
            if tally.num_cut:
                terminal.say(cut)
            reason = f"{tally.num_failed} documents failed, the first: {tally.first}"
            raise InputError(reason, hint=f"their rows in {self.out} say why; the others are done")
        if tally.num_cut:
            raise PastaError(cut, hint="raise --max-tokens, and name another --out")


def _documents(files: Sequence[Path], out: Path) -> Iterator[Path]:
    """Yield the files of documents, and those that lie in a folder."""
    for file in files:
        if not file.is_dir():
            yield file
            continue
        inside = (path for path in sorted(file.iterdir()) if path.is_file())
        own = out.resolve()
        yield from (
            path
            for path in inside
            if not path.name.startswith(".") and not str(path.resolve()).startswith(str(own))
        )


@contextmanager
def _on_disk(files: Sequence[Path]) -> Iterator[Sequence[Path]]:
    """Give the files, with standard input as one: documents are read more than once."""
    if files != [Path(terminal.STDIN)]:
        yield files
        return
    with NamedTemporaryFile(suffix=".jsonl") as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
        copy.flush()
        yield [Path(copy.name)]


def _split(words: Sequence[str], files: Sequence[Path]) -> tuple[str | None, list[Path]]:
    """Return the prompt among words, and the files."""
    typed = [word for word in words if not _is_file(word)]
    if len(typed) > 1:
        raise UsageError(f"two prompts: {typed[0]} and {typed[1]}", hint="one stands above each")
    return next(iter(typed), None), [*files, *(Path(word) for word in words if _is_file(word))]


def _is_file(word: str) -> bool:
    return os.path.exists(word) or word == terminal.STDIN or word.endswith(DOCUMENTS)


def _known(model: str | None, dtype: str | None, settings: Options) -> dict[str, object]:
    name = model or BUILTIN
    place = os.path.abspath(name) if os.path.exists(name) else name
    return {"model": place, "dtype": dtype, **settings}


def _schema(text: str) -> Schema | str | type[PydanticModel]:
    """Return the schema of a file, the class of ``module:Class``, or else the text: fields.

    What ends in .json is a file, there or missing.
    """
    if os.path.exists(text) or text == terminal.STDIN or text.endswith(".json"):
        try:
            schema = loads(terminal.read_text(text), object_pairs_hook=_object)
        except ValueError as exc:
            raise InputError(f"{text} is no JSON: {exc}") from exc
        if not isinstance(schema, dict):
            raise InputError(f"{text} is no JSON schema: it must be an object", hint=SMALLEST)
        return schema
    if text.lstrip().startswith("{"):
        raise UsageError("a JSON schema is read from a file", hint="--schema FILE.json, or -")
    if not re.fullmatch(r"[\w.]+:\w+", text):
        return text
    sys.path.insert(0, os.getcwd())
    try:
        form: type[PydanticModel] = resolve_name(text.replace(".py:", ":"))
        form.model_json_schema()
    except Exception as exc:  # a module does as it likes
        reason = f"--schema {text} is no class of pydantic that can be imported: {exc}"
        raise UsageError(reason, hint="module:Class, where the module lies in this folder") from exc
    return form


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    keys = [key for key, _ in pairs]
    if doubled := [key for key in keys if keys.count(key) > 1]:
        raise InputError(f"the key {doubled[0]!r} stands twice in an object of the schema")
    return dict(pairs)


def _waits(rules: Iterable[str]) -> dict[str, list[str]]:
    waits: dict[str, list[str]] = {}
    for rule in rules:
        name, _, others = rule.partition("=")
        if not (name and others):
            raise UsageError(f"--after cannot be {rule!r}", hint="for example --after total=items")
        waits.setdefault(name.strip(), []).extend(other.strip() for other in others.split(","))
    return waits


def _filled_below(
    decode: Callable[..., PartsAnswer], fields: Sequence[Part], start: int, text: str, watch: Watch
) -> PartsAnswer:
    answer = decode(text, watch=watch)
    return replace(answer, spans=spans_of(fields, answer.data, text[start:]))


def _watched(decode: Callable[..., PartsAnswer], text: str) -> PartsAnswer:
    with live_threads() as show:
        return decode(text, watch=lambda event: show([event]))


def _print_each(
    texts: Sequence[str], decode: Callable[..., PartsAnswer], trace: Path | None, *,
    as_json: bool, questions: Sequence[str] = (),
) -> list[PartsAnswer]:  # fmt: skip
    """Decode and print an answer to each text; a ``PastaError`` names the parts that were cut."""
    answers = list[PartsAnswer]()
    for text in texts:
        answers.append(answer := _watched(decode, text))
        run = answer.trace
        if as_json:
            figures = {"critical_path": run.critical_path, "wall_s": round(run.wall_s, 6)}
            facts = {"unfinished": answer.unfinished, "usage": run.usage(), **figures}
            spans = {"spans": answer.spans} if answer.spans else {}  # questions have none
            known = {"confidence": answer.confidence, **spans}
            terminal.print_json({"data": answer.data, **known, **facts})
        else:
            pairs = map("\n".join, zip(questions, answer.data, strict=False))
            terminal.print_answer("\n\n".join(pairs) or answer.text)
        print_figures(run, with_picture=not as_json)
        if trace is not None:
            terminal.write_text(trace, run.to_json())
    if cut := dict.fromkeys(name for answer in answers for name in answer.unfinished):
        reason = f"a limit cut {', '.join(cut)}; the other parts are complete"
        raise PastaError(reason, hint="raise --max-tokens")
    return answers


def _questions(words: Sequence[str]) -> list[str]:
    """Return the questions that were typed, or the lines of the one file that was named."""
    files = [word for word in words if os.path.exists(word) or FILE_NAME.fullmatch(word)]
    if files and len(words) > 1:
        hint = "give one file with a question a line, or questions"
        raise UsageError(f"{files[0]} is a file, and more than a file was given", hint=hint)
    lines = terminal.read_text(files[0]).splitlines() if files else words
    check_text("ask", "the list of questions", "\n".join(lines))
    return [line.strip() for line in lines if line.strip()]
