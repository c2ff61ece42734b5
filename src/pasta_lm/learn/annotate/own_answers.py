"""Let a model answer instructions sequentially, and keep the answers it can be trained on.

The rules for these look at the form of an answer; they check neither facts nor quality.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple
from unicodedata import name as name_of

from pasta_lm.engines.request import Answer, Finished, SamplingParams, unless_failed
from pasta_lm.errors import InputError, RequestError, UsageError
from pasta_lm.journal import Journal, Row, read_rows, write_rows
from pasta_lm.learn.annotate.layout_rule import units
from pasta_lm.learn.data import METADATA, question_of
from pasta_lm.learn.data.annotated import read_ids
from pasta_lm.models.load import hashes_of
from pasta_lm.recipe import check_positive
from pasta_lm.run_folder import RunFolder
from pasta_lm.strategies import SEQUENTIAL
from pasta_lm.strategies.model import Pasta

ANSWERS, USABLE, COUNTS = "answers.jsonl", "usable.jsonl", "counts.json"
ROOM = 260  # Tokens of a prompt for which the engine's memory has room, beside its answer.
MAY_CHANGE = {"model", "instructions", "out", "exclude", "limit", "in_flight", "device"}
"""Keys that change no answer; the contents of the model's files may not change."""
Progress = Callable[[int, int], None]
TEMPERATURE = 0.3  # a model that comes without settings is sampled at it

MIN_WORDS = 3
MAX_REPEATED_WORDS = 0.35
"""Share of an answer's words that lie in a run of eight words which stood there before."""
MAX_REPEATED_UNITS = 0.25
"""Share of an answer's sentences and lines that are the same as an earlier one."""
MAX_ECHOED = 0.9
"""Share of an answer's runs of four words that are the instruction's; an answer of less than
half the instruction's length may be a choice among what it names."""
MAX_WORD_LENGTH = 60  # characters
MAX_FOREIGN_LETTERS = 0.3
"""Share of letters outside the Latin and Greek alphabets, where the instruction neither has such
letters nor names a language. A wrong language in Latin letters is not seen."""
REFUSAL_WITHIN = 300
"""Characters at the beginning in which a refusal counts; later it may be part of a text."""

_BROKEN = re.compile(r"[\ufffd\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerConfig:
    """A model that answers instructions; ``[answers]`` of a recipe."""

    model: str  # A folder, a GGUF file or a hub id.
    instructions: str  # JSON lines with ``id`` and ``instruction``, gzipped if named ``.gz``.
    out: str  # The folder of the answers.
    exclude: str | None = None  # A file with the ids of instructions that are held out.
    limit: int | None = None  # Only the first so many; None: all.
    temperature: float | None = None
    """Sampling temperature; None: ``generation_config.json``'s settings, else 0.3 with top-k 40."""
    max_tokens: int = 500  # Maximum tokens of an answer; longer ones are left out.
    think: bool = False  # Let the model think first; its thoughts are kept beside the answers.
    max_thinking_tokens: int | None = None
    """Maximum tokens of a thought, which ends there; None: ``max_tokens``."""
    seed: int = 0  # Random seed of the sampling.
    dtype: str | None = None
    """``float32`` or ``bfloat16``; None: float32 on a CPU, else as the model was saved."""
    device: str | None = None  # Such as ``cuda``; None: the first that there is.
    in_flight: int = 160
    """Answers that are decoded at the same time, if the engine's pool has room for them."""

    def __post_init__(self) -> None:
        check_positive("answers", self, "limit", "max_tokens", "in_flight")

    def load(self) -> Pasta:
        return Pasta.from_pretrained(
            self.model, dtype=self.dtype, device=self.device,
            pool_tokens=self.in_flight * (self.max_tokens + ROOM),
        )  # fmt: skip


class AnswerCounts(NamedTuple):
    """Counts of a run: of usable answers, and of the others by their reason."""

    num_answers: int
    num_tokens: int
    counts: dict[str, int]


def read_instructions(path: Path) -> dict[str, Row]:
    """Return the rows of a file by id, each with the text that is asked as its instruction."""
    rows = {row["id"]: row for row in read_rows(path)}
    for name, row in rows.items():
        about = {key: value for key, value in row.items() if key in METADATA}
        rows[name] = about | {
            "instruction": question_of(row, f"{path}: row {name} has no instruction")
        }
    return rows


def instructions_of(config: AnswerConfig) -> dict[str, str]:
    held_out = set(read_ids(Path(config.exclude))) if config.exclude else set()
    rows = read_instructions(Path(config.instructions))
    kept = {name: row["instruction"] for name, row in rows.items() if name not in held_out}
    if not kept:
        raise InputError(f"{config.instructions} has no instruction that is not held out")
    return dict(list(kept.items())[: config.limit])


def answer(
    config: AnswerConfig, load: Callable[[], Pasta], progress: Progress = lambda done, total: None
) -> AnswerCounts:
    """Answer the instructions without an answer; write all answers, the usable ones, and counts.

    An answer is ``{"id", "instruction", "answer", "num_tokens", "ended"}``: of the
    instruction a hash, so that a file that grew continues the run; ``ended`` is false where the
    limit of tokens cut it off, and where a prompt was too long for the model (then the answer is
    empty). The model is loaded only if an answer is lacking.
    """
    out, texts = Path(config.out), instructions_of(config)
    journal = Journal(out / ANSWERS)
    for name, row in journal.rows.items():
        text = digest(texts[name]) if name in texts else row.get("instruction")
        if row.get("instruction", text) != text:
            change = f"{name} was begun with instruction = {row['instruction']!r}, not {text!r}"
            raise UsageError(f"{journal.path}: {change}", hint="name another folder")
    inputs = hashes_of("model", config.model)
    RunFolder(out).begin(asdict(config), may_change=MAY_CHANGE, inputs=inputs)
    lacking = {name: text for name, text in texts.items() if name not in journal.rows}
    for row in _answers(load(), lacking, config) if lacking else ():
        journal.append([{"instruction": digest(texts[row["id"]]), **row}])
        progress(len(journal.rows), len(texts))
    usable, counts = list[Row](), Counter[str]()
    for name, text in texts.items():
        row = journal.rows[name]
        why = why_unusable(text, row["answer"], has_ended=row["ended"])
        counts[why or "usable"] += 1
        if why is None:
            thought = {"reasoning": row["reasoning"]} if "reasoning" in row else {}
            usable.append({"id": name, "prompt": text, "answer": row["answer"], **thought})
    num_tokens = sum(journal.rows[name]["num_tokens"] for name in texts)
    answered = AnswerCounts(len(texts), num_tokens, dict(counts.most_common()))
    write_rows(out / USABLE, usable)
    write_rows(out / COUNTS, [answered._asdict()])
    return answered


def _answers(model: Pasta, instructions: Mapping[str, str], config: AnswerConfig) -> Iterator[Row]:
    engine, sampling = model.engine, _sampling(model, config)
    waiting, running = deque(instructions), dict[int, str]()

    def submit(name: str) -> Iterator[Row]:
        # By its name, so that no answer depends on which others are decoded. Counter-based numbers
        # would repeat under the same seed.
        digits = hashlib.sha256(f"{config.seed}/{name}".encode()).digest()[:7]
        params = replace(sampling, seed=int.from_bytes(digits))
        request = model.request(instructions[name], params, strategy=SEQUENTIAL, think=config.think)
        try:
            running[engine.submit(request)] = name
        except RequestError:  # longer than the context or the pool
            yield _row(name)

    def step() -> Iterator[Row]:
        for number, event in engine.step() if running else ():
            done = unless_failed(event)
            if isinstance(done, Finished) and number in running:
                yield _row(running.pop(number), done.answer)

    try:
        while waiting or running:
            while waiting and len(running) < config.in_flight:
                yield from submit(waiting.popleft())
            yield from step()
    finally:
        for number in running:
            engine.cancel(number)


def _sampling(model: Pasta, config: AnswerConfig) -> SamplingParams:
    sampling = model.sampling_params(
        max_tokens=config.max_tokens, max_thinking_tokens=config.max_thinking_tokens
    )
    if sampling.temperature == 0:
        sampling = replace(sampling, temperature=TEMPERATURE, top_k=40)
    if config.temperature is None:
        return sampling
    return replace(sampling, temperature=config.temperature)


def _row(name: str, answer: Answer | None = None) -> Row:
    if answer is None:
        return {"id": name, "answer": "", "num_tokens": 0, "ended": False}
    thought = {"reasoning": answer.reasoning} if answer.reasoning else {}
    num_tokens, ended = answer.usage["completion_tokens"], answer.finish_reason == "stop"
    end = {"num_tokens": num_tokens, "ended": ended}
    return {"id": name, "answer": answer.text, **thought, **end}


def digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def why_unusable(instruction: str, answer: str, *, has_ended: bool = True) -> str | None:
    """Return the first reason to leave an answer out; None if it can be used."""
    words, prompt = _words(answer), _words(instruction)
    runs, asked_for = {*_runs(words, 4)}, {*_runs(prompt, 4)}
    is_echo = 2 * len(words) >= len(prompt) and len(runs & asked_for) > MAX_ECHOED * len(runs)
    may_be_foreign = _LANGUAGE.search(instruction) or _foreign_share(instruction) > 0
    longest = max(map(len, re.findall(r"\w+", _URL.sub(" ", answer))), default=0)
    reasons = {
        "cut_off": not has_ended,
        "empty": len(words) < MIN_WORDS,
        "garbage": _BROKEN.search(answer) or longest > MAX_WORD_LENGTH,
        "language": not may_be_foreign and _foreign_share(answer) > MAX_FOREIGN_LETTERS,
        "refusal": _REFUSAL.search(answer.replace("’", "'"), 0, REFUSAL_WITHIN),
        "echo": is_echo,
        "loops": repeated_words(words) > MAX_REPEATED_WORDS or _units_loop(answer),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def repeated_words(words: Sequence[str], length: int = 8) -> float:
    """Return the share of words that lie in a run of ``length`` words seen before."""
    seen, repeated = set[tuple[str, ...]](), set[int]()
    for begin, run in enumerate(_runs(words, length)):
        if run in seen:
            repeated.update(range(begin, begin + length))
        seen.add(run)
    return len(repeated) / len(words) if words else 0.0


def _runs(words: Sequence[str], length: int) -> list[tuple[str, ...]]:
    return [tuple(words[begin : begin + length]) for begin in range(len(words) - length + 1)]


def _units_loop(answer: str) -> bool:
    texts = [answer[unit.inside : unit.end] for unit in units(answer)]
    words = [_words(text) for text in texts if not text.startswith(("```", "~~~"))]
    plain = list(filter(None, map(" ".join, words)))
    num_repeated = len(plain) - len(set(plain))
    return num_repeated >= 2 and num_repeated > MAX_REPEATED_UNITS * len(plain)


def _foreign_share(text: str) -> float:
    letters = [char for char in text if char.isalpha()]
    foreign = [char for char in letters if not name_of(char, "").startswith(("LATIN", "GREEK"))]
    return len(foreign) / len(letters) if letters else 0.0


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())
