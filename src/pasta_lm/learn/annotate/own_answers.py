"""Let a model answer instructions sequentially, and keep the answers it can be trained on."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from unicodedata import category
from unicodedata import name as name_of

from pasta_lm.engines.request import Answer, Finished, SamplingParams, unless_failed
from pasta_lm.errors import InputError, RequestError, UsageError
from pasta_lm.journal import Journal, Row, read_rows, write_rows
from pasta_lm.learn.annotate.filters import units
from pasta_lm.models.annotated import read_ids
from pasta_lm.recipe import check_positive
from pasta_lm.strategies import sequential

if TYPE_CHECKING:
    from pasta_lm.engines import Engine
    from pasta_lm.strategies.model import Pasta

OWN_SAMPLING = SamplingParams(top_k=40)
"""How the answers of ``corpora/own_answers`` were sampled."""
IN_FLIGHT = 160
"""Answers that are decoded at the same time, if the engine's pool has room for them."""
ANSWERS, USABLE, COUNTS = "answers.jsonl", "usable.jsonl", "counts.json"
ROOM = 260
"""Tokens of a prompt for which the engine's memory has room, beside its answer."""
Progress = Callable[[int, int], None]

MIN_WORDS = 3
LOOP_WORDS = 8
MAX_REPEATED_WORDS = 0.35
"""Share of an answer's words that lie in a run of eight words which stood there before."""
MAX_REPEATED_UNITS = 0.25
"""Share of an answer's sentences and lines that are the same as an earlier one."""
ECHO_WORDS = 4
MAX_ECHOED = 0.9
"""Share of an answer's runs of four words that are the instruction's; an answer of less than
half the instruction's length may be a choice among what it names."""
CODE_FENCES = ("```", "~~~")
MAX_WORD_LENGTH = 60  # characters
MAX_FOREIGN_LETTERS = 0.3
"""Share of letters outside the Latin and Greek alphabets, where the instruction neither has such
letters nor names a language. A wrong language in Latin letters is not seen."""

_URL = re.compile(r"\w+://\S+|\S+\.\S+")
_LANGUAGE = re.compile(
    r"\b(?:[Tt]ranslat\w+|languages?|alphabets?|[A-Z]\w+(?:ese|[ei]an|ic|ish)|Hindi|Hebrew|Thai)\b"
)
_REFUSAL = re.compile(
    r"\bas an? (?:\w+[ -]){0,3}(?:AI|chatbot|language model)\b"
    r"|\bI(?:'m| am) (?:just |only |merely )?an? (?:AI|chatbot|language model|digital assistant)\b"
    r"|\bI(?:'m| am) (?:sorry|afraid)\b[^.!?\n]{0,60}\b(?:can(?:'|no)t|unable to|not able to) "
    r"(?:assist|help|provide|fulfil|answer|generate|create|write|give|offer|translate)"
    r"|\bI(?:'m| am) (?:not equipped|not able|unable) to (?:assist|help|provide|fulfil|answer)"
    r"|\bI (?:do not|don't) have the (?:ability|capability|capacity)\b"
    r"|\bI can(?:'|no)t (?:assist|help you with|provide|fulfil|generate)\b",
    re.IGNORECASE,
)
REFUSAL_WITHIN = 300
"""Characters at the beginning in which a refusal counts; later it may be part of a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerConfig:
    """A model that answers instructions; ``[answers]`` of a recipe."""

    model: str
    """A folder, a GGUF file or a hub id."""
    instructions: str
    """JSON lines with ``id`` and ``instruction``, gzipped if named ``.gz``."""
    out: str
    """The folder of the answers."""
    exclude: str | None = None
    """A file with the ids of instructions that are held out."""
    limit: int | None = None
    """Only the first so many; None: all."""
    temperature: float = 0.3
    """Of the answers."""
    max_tokens: int = 500
    """Of one answer; longer ones are cut off and left out."""
    seed: int = 0
    """Of the sampling."""
    dtype: str | None = None
    """``float32`` or ``bfloat16``; None: float32 on a CPU, else as the model was saved."""
    device: str | None = None
    """Such as ``cuda``; None: the first that there is."""
    in_flight: int = IN_FLIGHT
    """Answers that are decoded at the same time."""

    def __post_init__(self) -> None:
        check_positive("answers", self, "limit", "max_tokens", "in_flight")

    @property
    def pool_tokens(self) -> int:
        """Return the cache entries that all answers in flight can need."""
        return self.in_flight * (self.max_tokens + ROOM)


class AnswerCounts(NamedTuple):
    """The counts of a run."""

    num_answers: int
    num_tokens: int
    counts: dict[str, int]
    """Usable answers, and the others by their reason."""


def read_instructions(path: Path) -> dict[str, Row]:
    """Return the rows of a file of instructions by their ids.

    Raises:
        InputError: it cannot be read, or a row has no id or no instruction.
    """
    rows = {row["id"]: row for row in read_rows(path)}
    for name, row in rows.items():
        if not isinstance(row.get("instruction"), str):
            hint = 'a line is {"id": ..., "instruction": ...}'
            raise InputError(f"{path}: row {name} has no instruction", hint=hint)
    return rows


def instructions_of(config: AnswerConfig) -> dict[str, str]:
    """Return the instructions of a recipe by id, in the order of the file.

    Raises:
        InputError: a file cannot be read, or nothing is left.
    """
    held_out = set(read_ids(Path(config.exclude))) if config.exclude else set()
    rows = read_instructions(Path(config.instructions))
    kept = {name: row["instruction"] for name, row in rows.items() if name not in held_out}
    if not kept:
        raise InputError(f"{config.instructions} has no instruction that is not held out")
    return dict(list(kept.items())[: config.limit])


def answer(
    config: AnswerConfig,
    load: Callable[[], Pasta],
    progress: Progress = lambda done, total: None,
) -> AnswerCounts:
    """Answer the instructions without an answer; write all answers, the usable ones, and counts.

    The model is loaded only if an answer is lacking.

    Raises:
        InputError: a file cannot be read.
        UsageError: the folder was begun at another temperature.
        PastaError: the disk cannot be written.
    """
    out, texts = Path(config.out), instructions_of(config)
    params = replace(
        OWN_SAMPLING, temperature=config.temperature, max_tokens=config.max_tokens, seed=config.seed
    )
    rows = own_answers(load, texts, params, out / ANSWERS, progress, in_flight=config.in_flight)
    usable, reasons = usable_answers(rows, texts)
    write_rows(
        out / USABLE,
        [{"id": row["id"], "prompt": texts[row["id"]], "answer": row["answer"]} for row in usable],
    )
    counts = {str(reason): count for reason, count in reasons.most_common()}
    answered = AnswerCounts(len(rows), sum(row["num_tokens"] for row in rows), counts)
    write_rows(out / COUNTS, [answered._asdict()])
    return answered


def own_answers(
    load: Callable[[], Pasta],
    instructions: Mapping[str, str],
    sampling: SamplingParams,
    out: Path,
    progress: Progress = lambda done, total: None,
    *,
    in_flight: int = IN_FLIGHT,
) -> list[Row]:
    """Answer the instructions that a file lacks, and return its rows in the order of instructions.

    A row is ``{"id", "answer", "num_tokens", "ended", "temperature"}``; ``ended`` is false where
    the limit of tokens cut an answer off, and where a prompt was too long for the model (then the
    answer is empty). The seed is combined with the id, so an answer does not depend on which
    others are decoded. The model is loaded only if the file lacks an answer.

    Raises:
        UsageError: the answers of an existing file were sampled at another temperature.
        InputError: the file is not one of answers.
        PastaError: the disk cannot be written.
    """
    journal = Journal(out)
    for row in journal.rows.values():
        if row.get("temperature") != sampling.temperature:
            raise UsageError(
                f"{out} was begun with temperature = {row.get('temperature')!r}, not "
                f"{sampling.temperature!r}",
                hint="restore the temperature, or name another file",
            )
    lacking = {name: text for name, text in instructions.items() if name not in journal.rows}
    for row in _answers(load(), lacking, sampling, in_flight) if lacking else ():
        journal.append([row])
        progress(len(journal.rows), len(instructions))
    return [journal.rows[name] for name in instructions]


def _answers(
    model: Pasta, instructions: Mapping[str, str], sampling: SamplingParams, in_flight: int
) -> Iterator[Row]:
    engine, running = model.engine, dict[int, str]()
    try:
        for name, text in instructions.items():
            yield from _finished(engine, running, sampling, in_flight - 1)
            params = replace(sampling, seed=_seed(name, sampling.seed))
            try:
                number = engine.submit(model.request(text, params, strategy=sequential.NAME))
                running[number] = name
            except RequestError:  # longer than the context or the pool
                yield _row(name, sampling)
        yield from _finished(engine, running, sampling, 0)
    finally:
        for number in running:
            engine.cancel(number)


def _finished(
    engine: Engine, running: dict[int, str], sampling: SamplingParams, most: int
) -> Iterator[Row]:
    """Yield the rows of answers that end until at most so many are left."""
    while len(running) > most:
        for number, event in engine.step():
            done = unless_failed(event)
            if isinstance(done, Finished) and number in running:
                yield _row(running.pop(number), sampling, done.answer)


def _row(name: str, sampling: SamplingParams, answer: Answer | None = None) -> Row:
    return {
        "id": name,
        "answer": answer.text if answer else "",
        "num_tokens": answer.usage["completion_tokens"] if answer else 0,
        "ended": answer is not None and answer.finish_reason == "stop",
        "temperature": sampling.temperature,
    }


def _seed(name: str, seed: int | None) -> int | None:
    """Return a seed for one instruction: counter-based numbers repeat under the same seed."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return None if seed is None else int.from_bytes(digest[:7])


class Unusable(StrEnum):
    """Why an answer is left out; the first that holds, in this order."""

    CUT_OFF = "cut_off"
    EMPTY = "empty"
    GARBAGE = "garbage"
    LANGUAGE = "language"
    REFUSAL = "refusal"
    ECHO = "echo"
    LOOPS = "loops"


def usable_answers(
    rows: Iterable[Row], instructions: Mapping[str, str]
) -> tuple[list[Row], Counter[str]]:
    """Return the answers that pass the rules, and how many did or failed for which reason."""
    kept, reasons = [], Counter[str]()
    for row in rows:
        why = why_unusable(instructions[row["id"]], row["answer"], has_ended=row["ended"])
        reasons[why or "usable"] += 1
        if why is None:
            kept.append(row)
    return kept, reasons


def why_unusable(instruction: str, answer: str, *, has_ended: bool = True) -> Unusable | None:
    """Return the reason to leave an answer out; None if it can be used.

    The rules look at form alone: facts are not checked, and neither is whether an answer is good.
    ``has_ended`` says that the model ended it, and no limit cut it off.
    """
    words = _words(answer)
    if not has_ended:
        return Unusable.CUT_OFF
    if len(words) < MIN_WORDS:
        return Unusable.EMPTY
    if _is_garbage(answer):
        return Unusable.GARBAGE
    if _is_foreign(answer, instruction):
        return Unusable.LANGUAGE
    if _REFUSAL.search(answer.replace("’", "'"), 0, REFUSAL_WITHIN):
        return Unusable.REFUSAL
    prompt = _words(instruction)
    if 2 * len(words) >= len(prompt) and _echoed_share(words, prompt) > MAX_ECHOED:
        return Unusable.ECHO
    if repeated_words(words) > MAX_REPEATED_WORDS or _units_loop(answer):
        return Unusable.LOOPS
    return None


def repeated_words(words: Sequence[str], length: int = LOOP_WORDS) -> float:
    """Return the share of words that lie in a run of ``length`` words seen before."""
    seen: set[tuple[str, ...]] = set()
    repeated: set[int] = set()
    for begin in range(len(words) - length + 1):
        gram = tuple(words[begin : begin + length])
        if gram in seen:
            repeated.update(range(begin, begin + length))
        seen.add(gram)
    return len(repeated) / len(words) if words else 0.0


def _units_loop(answer: str) -> bool:
    texts = [answer[unit.inside : unit.end] for unit in units(answer)]
    plain = [" ".join(_words(text)) for text in texts if not text.startswith(CODE_FENCES)]
    plain = [text for text in plain if text]
    num_repeated = len(plain) - len(set(plain))
    return num_repeated >= 2 and num_repeated > MAX_REPEATED_UNITS * len(plain)


def _echoed_share(answer: Sequence[str], instruction: Sequence[str]) -> float:
    own, prompt = (
        {tuple(text[begin : begin + ECHO_WORDS]) for begin in range(len(text) - ECHO_WORDS + 1)}
        for text in (answer, instruction)
    )
    return len(own & prompt) / len(own) if own else 0.0


def _is_garbage(answer: str) -> bool:
    has_broken_characters = any(
        char == "\N{REPLACEMENT CHARACTER}" or (category(char) == "Cc" and char not in "\n\t\r")
        for char in answer
    )
    longest = max((len(word) for word in re.findall(r"\w+", _URL.sub(" ", answer))), default=0)
    return has_broken_characters or longest > MAX_WORD_LENGTH


def _is_foreign(answer: str, instruction: str) -> bool:
    is_wanted = _LANGUAGE.search(instruction) or _foreign_share(instruction) > 0
    return not is_wanted and _foreign_share(answer) > MAX_FOREIGN_LETTERS


def _foreign_share(text: str) -> float:
    letters = [char for char in text if char.isalpha()]
    foreign = [char for char in letters if not name_of(char, "").startswith(("LATIN", "GREEK"))]
    return len(foreign) / len(letters) if letters else 0.0


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())
