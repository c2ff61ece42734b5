"""Let a model answer instructions sequentially, and decide which answers it can be taught on.

The rules for usable answers look at form alone: facts are not checked, and neither is whether an
answer is good. Every reason against an answer has a name.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from itertools import islice
from pathlib import Path
from unicodedata import category
from unicodedata import name as name_of

from pasta_lm.engines.request import Answer, Failed, Finished, SamplingParams
from pasta_lm.errors import RequestError, UsageError
from pasta_lm.journal import Journal, Row
from pasta_lm.learn.annotate.marks import units
from pasta_lm.strategies import sequential
from pasta_lm.strategies.model import Pasta

OWN_SAMPLING = SamplingParams(temperature=0.3, top_k=40, max_tokens=500)
"""How the answers of ``corpora/own_answers`` were sampled."""
IN_FLIGHT = 160
"""Answers that are decoded at the same time, if the engine's pool has room for them."""
USABLE = "usable"

LEAST_WORDS = 3
LOOP_WORDS = 8
MOST_REPEATED_WORDS = 0.35
"""Share of an answer's words that lie in a run of eight words which stood there before."""
MOST_REPEATED_UNITS = 0.25
"""Share of an answer's sentences and lines that are the same as an earlier one."""
ECHO_WORDS = 4
MOST_ECHOED = 0.9
"""Share of an answer's runs of four words that are the instruction's; an answer of less than
half the instruction's length may be a choice among what it names."""
CODE_FENCES = ("```", "~~~")
LONGEST_WORD = 60  # characters
MOST_FOREIGN_LETTERS = 0.3
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
"""A refusal is said in this many characters at the beginning; later it may be part of a text."""

Progress = Callable[[int, int], None]


def own_answers(
    model: Pasta | Callable[[], Pasta],
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
    answer is empty). Each instruction has a seed of its own, so an answer does not depend on which
    others are decoded.

    Args:
        model: Answers each instruction as a user's message, without tags; or what loads it, called
            only if the file lacks an answer.
        instructions: Texts by their ids.
        sampling: One sample of each; its ``seed`` is combined with the id.
        out: A file of JSON lines, in the order in which answers were complete.
        progress: Called with the number of answers and of instructions.
        in_flight: Answers that are decoded at the same time, if there is room for them.

    Raises:
        UsageError: the answers of an existing file were sampled at another temperature, or more
            than one sample is asked for.
        InputError: the file is not one of answers.
        PastaError: the disk cannot be written.
    """
    if sampling.n != 1:
        raise UsageError(f"n is {sampling.n}, but an instruction has one own answer")
    journal = Journal(out)
    for row in journal.rows.values():
        if row.get("temperature") != sampling.temperature:
            raise UsageError(
                f"{out} was begun with temperature = {row.get('temperature')!r}, not "
                f"{sampling.temperature!r}",
                hint="restore the temperature, or name another file",
            )
    lacking = {name: text for name, text in instructions.items() if name not in journal.rows}
    for row in _answers(model, lacking, sampling, in_flight) if lacking else ():
        journal.append([row])
        progress(len(journal.rows), len(instructions))
    return [journal.rows[name] for name in instructions]


def usable_answers(
    rows: Iterable[Row], instructions: Mapping[str, str]
) -> tuple[list[Row], Counter[str]]:
    """Return the answers that pass the rules, and how many did or failed for which reason."""
    kept, reasons = [], Counter[str]()
    for row in rows:
        why = why_unusable(instructions[row["id"]], row["answer"], has_ended=row["ended"])
        reasons[why or USABLE] += 1
        if why is None:
            kept.append(row)
    return kept, reasons


def _answers(
    model: Pasta | Callable[[], Pasta],
    instructions: Mapping[str, str],
    sampling: SamplingParams,
    in_flight: int,
) -> Iterator[Row]:
    """Yield a row for each instruction as soon as it is complete."""
    model = model if isinstance(model, Pasta) else model()
    engine, waiting = model.engine, iter(instructions.items())
    running: dict[int, str] = {}
    try:
        while True:
            for name, text in islice(waiting, in_flight - len(running)):
                params = replace(sampling, seed=_seed(name, sampling.seed))
                try:
                    number = engine.submit(model.request(text, params, strategy=sequential.NAME))
                except RequestError:  # longer than the context or the pool
                    yield _row(name, sampling)
                else:
                    running[number] = name
            if not running:
                return
            for number, event in engine.step():
                if isinstance(event, Failed):
                    raise event.error
                if isinstance(event, Finished) and number in running:
                    yield _row(running.pop(number), sampling, event.answer)
    finally:
        for number in running:
            engine.cancel(number)


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
    if seed is None:
        return None
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:7])


class Unusable(StrEnum):
    """Why an answer is left out; the first that holds, in this order."""

    CUT_OFF = "cut_off"
    EMPTY = "empty"
    GARBAGE = "garbage"
    LANGUAGE = "language"
    REFUSAL = "refusal"
    ECHO = "echo"
    LOOPS = "loops"


def why_unusable(instruction: str, answer: str, *, has_ended: bool = True) -> Unusable | None:
    """Return the reason to leave an answer out; None if it can be used.

    Args:
        instruction: The instruction that was answered.
        answer: The model's whole answer.
        has_ended: Whether the model ended it, and no limit cut it off.
    """
    words = _words(answer)
    if not has_ended:
        return Unusable.CUT_OFF
    if len(words) < LEAST_WORDS:
        return Unusable.EMPTY
    if _is_garbage(answer):
        return Unusable.GARBAGE
    if _is_foreign(answer, instruction):
        return Unusable.LANGUAGE
    if _REFUSAL.search(answer.replace("’", "'"), 0, REFUSAL_WITHIN):
        return Unusable.REFUSAL
    asked = _words(instruction)
    if 2 * len(words) >= len(asked) and _echoed_share(words, asked) > MOST_ECHOED:
        return Unusable.ECHO
    if repeated_words(words) > MOST_REPEATED_WORDS or _units_loop(answer):
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
    found = [" ".join(_words(text)) for text in texts if not text.startswith(CODE_FENCES)]
    found = [text for text in found if text]
    num_repeated = len(found) - len(set(found))
    return num_repeated >= 2 and num_repeated > MOST_REPEATED_UNITS * len(found)


def _echoed_share(answer: Sequence[str], instruction: Sequence[str]) -> float:
    own, asked = (
        {tuple(text[begin : begin + ECHO_WORDS]) for begin in range(len(text) - ECHO_WORDS + 1)}
        for text in (answer, instruction)
    )
    return len(own & asked) / len(own) if own else 0.0


def _is_garbage(answer: str) -> bool:
    has_broken_characters = any(
        char == "\N{REPLACEMENT CHARACTER}" or (category(char) == "Cc" and char not in "\n\t\r")
        for char in answer
    )
    longest = max((len(word) for word in re.findall(r"\w+", _URL.sub(" ", answer))), default=0)
    return has_broken_characters or longest > LONGEST_WORD


def _is_foreign(answer: str, instruction: str) -> bool:
    asks_for_it = _LANGUAGE.search(instruction) or _foreign_share(instruction) > 0
    return not asks_for_it and _foreign_share(answer) > MOST_FOREIGN_LETTERS


def _foreign_share(text: str) -> float:
    letters = [char for char in text if char.isalpha()]
    foreign = [char for char in letters if not name_of(char, "").startswith(("LATIN", "GREEK"))]
    return len(foreign) / len(letters) if letters else 0.0


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())
