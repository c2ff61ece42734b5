"""``pasta fill`` and ``ask``: fields of a schema, answers to questions; of one document or many."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from tempfile import NamedTemporaryFile
from threading import Event
from typing import Annotated, cast

import typer

from pasta_lm.cli import flags, terminal
from pasta_lm.cli.flags import option, require_engine
from pasta_lm.cli.run import (
    EXAMPLES,
    FILE_NAME,
    check_text,
    check_trace,
    checked,
    hashes_of,
    load_model,
    prompts,
)
from pasta_lm.cli.thread_view import live_threads, print_figures
from pasta_lm.documents import LINES, TABLE, DocumentJob, reader_of
from pasta_lm.engines import Engine
from pasta_lm.engines.request import Answer
from pasta_lm.engines.schemas import PydanticModel, schema_of
from pasta_lm.errors import InputError, MissingFileError, PastaError, UsageError
from pasta_lm.journal import parse_unique
from pasta_lm.parts.declared import PartsAnswer, check_fields
from pasta_lm.parts.fields import MAX_FIELDS, SMALLEST, fields_of
from pasta_lm.parts.questions import check_choices
from pasta_lm.parts.wanted import AnySchema, Waits, Wanted, below, instance
from pasta_lm.strategies import Prompt
from pasta_lm.strategies.model import Pasta
from pasta_lm.strategies.requests import sampling_params

STOPPING = "documents in flight are finished; Ctrl-C again stops at once"
NAMES = re.compile(r"\S+(\.(jsonl|csv|txt|md)|/)|-")  # also of missing ones
Out = Annotated[
    Path | None, option("--out OUT", "Rows of many documents, .jsonl or .csv; continued if begun.")
]
ReviewBelow = Annotated[
    tuple[float, Path] | None,
    option("--review-below P FILE", "Also write the rows with a field of less confidence."),
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
    form, waits = read_schema(schema), _waits(after or ())
    prompt, files = _split(words or (), file or ())
    is_class = not isinstance(form, str | Mapping)
    check = partial(instance, schema=cast("type[PydanticModel]", form)) if is_class else None
    documents = _documents(out, files, review_below, limit, is_single=json or trace is not None)
    above, alone = (prompt, None) if files or out else (None, prompt)
    if above is not None:
        check_text("fill", "the prompt", above)
    texts = [] if out else prompts("fill", alone, files)
    check_trace(trace, len(texts))
    _check_fields(form, waits, schema if isinstance(form, Mapping) else "--schema")

    def begin() -> tuple[Pasta, Wanted]:
        loaded = load_model(model, servers, dtype=dtype, device=device)
        wanted = loaded.filling(schema_of(form), after=waits, **settings)
        return loaded, wanted._replace(request=lambda text: wanted.request(below(above, text)))

    if out is not None:
        columns = {field.name: field.path for field in fields_of(schema_of(form))}
        known = {"schema": schema_of(form), "after": waits, "prompt": prompt, **settings}
        known["dtype"] = dtype
        job = DocumentJob(documents, out, columns, known, partial(hashes_of, model, servers), limit)
        return _run(job, begin, review_below, check)
    answers = _print_each(texts, *begin(), trace, as_json=json)
    if check is not None:
        for answer in answers:
            check(answer)


def ask(
    document: Annotated[
        Path, typer.Argument(metavar="DOCUMENT", help="A file, - for stdin; many with --out.")
    ],
    questions: Annotated[
        list[str], typer.Argument(metavar="QUESTIONS", help="Questions, or a file, one a line.")
    ],
    choices: Annotated[
        str | None, option("--choices A,B,C", "Each answer is one of these, scored in one step.")
    ] = None,
    model: flags.Model = None, dtype: flags.Dtype = None, device: flags.Device = None,
    max_tokens: flags.MaxTokens = 1024, temperature: flags.Temperature = None,
    seed: flags.Seed = 0,
    engine: flags.Engine = None, json: flags.Json = False, trace: flags.Trace = None,
    out: Out = None, review_below: ReviewBelow = None,
) -> None:  # fmt: skip
    """Answer many questions about one document at the same time.

    Each question is a thread that sees the document and nothing of the others. A single QUESTION
    that exists as a file, or looks like the name of one, is a file of questions. With --out
    DOCUMENT may be many, as for pasta fill.
    """
    servers = require_engine(engine)
    is_single = json or trace is not None
    documents = _documents(out, [document], review_below, None, is_single=is_single)
    texts, lines = [] if out else prompts("ask", None, [document]), _questions(questions)
    check_trace(trace, len(texts))
    settings = checked(
        max_tokens=max_tokens, temperature=temperature, seed=seed, max_blocks=MAX_FIELDS
    )  # fmt: skip
    members = [] if choices is None else [text.strip() for text in choices.split(",")]
    if choices is not None:
        check_choices(members, sampling_params(None, settings))
    if out and len({*lines}) < len(lines):
        raise UsageError("a question stands twice", hint="ask it once")

    def begin() -> tuple[Pasta, Wanted]:
        loaded = load_model(model, servers, dtype=dtype, device=device)
        return loaded, loaded.asking(lines, choices=members, **settings)

    if out is not None:
        columns = {line: (index,) for index, line in enumerate(lines)}
        known = {"questions": lines, "choices": members, "dtype": dtype, **settings}
        job = DocumentJob(documents, out, columns, known, partial(hashes_of, model, servers))
        return _run(job, begin, review_below)
    _print_each(texts, *begin(), trace, as_json=json, questions=lines)


# Many documents


def _documents(
    out: Path | None, files: Sequence[Path], review_below: tuple[float, Path] | None,
    limit: int | None, *, is_single: bool,
) -> list[Path]:  # fmt: skip
    """Return the files of documents for ``--out``; a ``UsageError`` if flags do not fit it."""
    if out is None:
        if rows := [file for file in files if reader_of(file) or file.is_dir()]:
            hint = "--out filled.csv; a file that is one document all the same: - < FILE"
            raise UsageError(f"{rows[0]} has many documents: name a file of rows", hint=hint)
        if review_below or limit:
            raise UsageError("--review-below and --limit are for --out", hint="add it")
        return []
    if is_single:
        reason = "--json and --trace are of one answer; the rows of --out are JSON"
        raise UsageError(reason, hint="leave them out")
    below, review = review_below or (0.0, None)
    if not 0 <= below <= 1:
        raise UsageError(f"--review-below cannot be {below:g}", hint="a probability, from 0 to 1")
    if out.suffix not in (LINES, TABLE) or (review and review.suffix != LINES):
        reason = "--out ends in .jsonl or .csv, and the file of --review-below in .jsonl"
        raise UsageError(reason, hint="--out filled.jsonl")
    if not files and sys.stdin.isatty():
        raise UsageError("there are no documents", hint=EXAMPLES["many"])
    made = [path.resolve() for path in (out, Path(f"{out}{LINES}"), review) if path]
    documents = [path for file in files or [Path(terminal.STDIN)] for path in _inside(file, made)]
    if not documents:
        raise UsageError(f"no file of text in {files[0]}", hint="name the folder of the documents")
    places = [*made, *(file.resolve() for file in documents)]
    if len({*places}) < len(places):
        raise UsageError("a file is named twice", hint="rows go to a file of their own")
    return documents


def _inside(file: Path, made: Sequence[Path]) -> list[Path]:
    """Return a file, or the files of a folder without those of the job."""
    if not file.is_dir():
        if not (file.exists() or file == Path(terminal.STDIN)):
            raise MissingFileError(file)
        return [file]
    inside = (path for path in sorted(file.iterdir()) if path.is_file())
    shown = (path for path in inside if not path.name.startswith(".") and path.suffix != ".json")
    return [path for path in shown if path.resolve() not in made]


def _run(
    job: DocumentJob, begin: Callable[[], tuple[Pasta, Wanted]],
    review_below: tuple[float, Path] | None,
    check: Callable[[PartsAnswer], PartsAnswer] | None = None,
) -> None:  # fmt: skip
    """Write the rows that are missing; an error at the end tells how many documents failed."""

    def start() -> tuple[Engine, Wanted]:
        loaded, wanted = begin()
        if loaded.engine.is_remote and review_below:
            hint = "leave --review-below out"
            raise UsageError("stock servers give no probability under a form", hint=hint)

        def read(answer: Answer, document: Prompt) -> PartsAnswer:
            values = wanted.read(answer, document)
            if check is not None:
                check(values)
            return values  # not an instance of the class: a row is JSON

        return loaded.engine, wanted._replace(read=read)

    stop = Event()
    with (
        terminal.interruptible(), _on_disk(job.files) as files, terminal.bars() as show,
        closing(replace(job, files=files).run(start, stop)) as changes,
    ):  # fmt: skip
        counts = next(changes)
        num_before, began_s = counts.num_rows, time.monotonic()
        show("documents", num_before, counts.total)
        with terminal.stopping(stop, STOPPING):
            for counts in changes:
                rate = (counts.num_rows - num_before) / (time.monotonic() - began_s)
                left_s = (counts.total - counts.num_rows) / rate
                speed = f"{rate:.2g} a second, {left_s:.0f} s left"
                show("documents", counts.num_rows, counts.total, speed)
    num_new, wall_s = counts.num_rows - num_before, time.monotonic() - began_s
    speed = f" in {wall_s:.0f} s ({num_new / wall_s:.2g} a second)" if num_new else ""
    terminal.say(f"{job.out}: {counts.num_rows} of {counts.total} rows, {num_new} new{speed}")
    if stop.is_set() and counts.num_rows < counts.total:
        terminal.say("stopped; the same command continues the run")
        raise typer.Exit(terminal.INTERRUPTED)
    if review_below is not None:
        num = job.write_review(*review_below)
        terminal.say(f"{num} rows to be reviewed in {review_below[1]}")
    if counts.num_failed:
        reason = f"{counts.num_failed} documents failed, the first: {counts.first}"
        raise InputError(reason, hint=f"their rows in {job.out} say why; the others are done")
    if counts.num_cut:
        cut = f"{counts.num_cut} documents have unfinished parts (cut or unreadable), see the rows"
        raise PastaError(cut, hint="raise --max-tokens, and name another --out")


@contextmanager
def _on_disk(files: Sequence[Path]) -> Iterator[Sequence[Path]]:
    """Give the files, with standard input as one: documents are read more than once."""
    if files != [Path(terminal.STDIN)]:
        yield files
        return
    with NamedTemporaryFile(suffix=LINES) as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
        copy.flush()
        yield [Path(copy.name)]


def _split(words: Sequence[str], files: Sequence[Path]) -> tuple[str | None, list[Path]]:
    """Return the prompt among words, and the files."""
    named = [word for word in words if os.path.exists(word) or NAMES.fullmatch(word)]
    typed = [word for word in words if word not in named]
    if len(typed) > 1:
        raise UsageError(f"two prompts: {typed[0]} and {typed[1]}", hint="one stands above each")
    return next(iter(typed), None), [*map(Path, named), *files]


# Schemas and questions


def _check_fields(form: AnySchema, waits: Waits, place: str) -> None:
    """Refuse fields that cannot be decoded, with the place where they are written."""
    try:
        check_fields(schema_of(form), waits)
    except UsageError as exc:
        sign = "," if exc.message.startswith("field ") else ":"
        raise UsageError(f"{place}{sign} {exc.message}", hint=exc.hint) from exc


def read_schema(text: str) -> AnySchema:
    """Return the schema of a file, the class of ``module:Class``, or else the text: fields.

    What ends in .json is a file, there or missing.
    """
    if os.path.exists(text) or text == terminal.STDIN or text.endswith(".json"):
        try:
            schema = parse_unique(terminal.read_text(text))
        except ValueError as exc:
            raise InputError(f"{text} cannot be read as JSON: {exc}") from exc
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


def _waits(rules: Iterable[str]) -> dict[str, list[str]]:
    waits: dict[str, list[str]] = {}
    for rule in rules:
        name, _, others = rule.partition("=")
        if not (name and others):
            raise UsageError(f"--after cannot be {rule!r}", hint="for example --after total=items")
        waits.setdefault(name.strip(), []).extend(other.strip() for other in others.split(","))
    return waits


def _questions(words: Sequence[str]) -> list[str]:
    """Return the questions that were typed, or the lines of the one file that was named."""
    files = [word for word in words if os.path.exists(word) or FILE_NAME.fullmatch(word)]
    if files and len(words) > 1:
        hint = "give one file with a question a line, or questions"
        raise UsageError(f"{files[0]} is a file, and more than a file was given", hint=hint)
    lines = terminal.read_text(files[0]).splitlines() if files else words
    check_text("ask", "the list of questions", "\n".join(lines))
    return [line.strip() for line in lines if line.strip()]


def _print_each(
    texts: Sequence[str], model: Pasta, wanted: Wanted, trace: Path | None, *,
    as_json: bool, questions: Sequence[str] = (),
) -> list[PartsAnswer]:  # fmt: skip
    """Decode and print an answer to each text; a ``PastaError`` names the parts that were cut."""
    answers = list[PartsAnswer]()
    for text in texts:
        with live_threads() as show:
            answer = model.answered(text, wanted, watch=lambda event: show([event]))
        answers.append(answer)
        run = answer.trace
        if as_json:
            figures = {"critical_path": run.critical_path, "wall_s": round(run.wall_s, 6)}
            facts = {"unfinished": answer.unfinished, "usage": run.usage(), **figures}
            spans = {"spans": answer.spans} if answer.spans else {}  # questions have none
            known = {"confidence": answer.confidence} if any(answer.confidence.values()) else {}
            terminal.print_json({"data": answer.data, **known, **spans, **facts})
        else:
            pairs = map("\n".join, zip(questions, answer.data, strict=False))
            terminal.print_answer("\n\n".join(pairs) or answer.text)
        print_figures(run, with_picture=not as_json)
        if trace is not None:
            terminal.write_text(trace, run.to_json())
    if cut := dict.fromkeys(name for answer in answers for name in answer.unfinished):
        reason = f"unfinished, cut or unreadable: {', '.join(cut)}; the other parts are complete"
        raise PastaError(reason, hint="raise --max-tokens")
    return answers
