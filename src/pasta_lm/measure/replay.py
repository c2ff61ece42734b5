"""Replay annotated answers: decode given texts sequentially and in parallel, and compare the speed.

The tokens are forced, but the work is real: every forward pass feeds one token per live thread,
computes logits and samples a token, which is discarded.

Source: PASTA, section 5.1 (theoretical and realised speedup, parallelism).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import geometric_mean, mean
from typing import TYPE_CHECKING

from pasta_lm.engines.request import Answer, Request, SamplingParams
from pasta_lm.errors import RequestError
from pasta_lm.interpreter import speed
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.interpreter.trace import Kind
from pasta_lm.learn.data.annotated import Record
from pasta_lm.learn.data.answer_record import AnswerRecord
from pasta_lm.strategies import PASTA, sequential_request
from pasta_lm.strategies.requests import forced

if TYPE_CHECKING:
    from pasta_lm.engines.local.engine import TorchEngine
    from pasta_lm.engines.local.loading import LoadedModel

MIN_BLOCKS = 2
NEW_TAG_ROWS = "given, tag rows added"
NUM_WARM_UPS = 2  # runs of the first answer before the clock counts
MANY_ANSWERS, NUM_RUNS = 10, 3  # of fewer answers each is decoded several times
FIGURES = (
    "num_threads_mean",
    "theoretical_speedup",
    "realised_speedup",
    "efficiency",
    "parallelism",
    "sequential_tokens_per_s",
    "parallel_tokens_per_s",
)
Figures = dict[str, float | None]
Skipped = tuple[str, str]  # the id of an answer, and why it was not decoded
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Pair:
    """One answer, decoded both ways."""

    id: str
    num_blocks: int
    sequential: AnswerRecord
    parallel: AnswerRecord

    @property
    def wall_s(self) -> tuple[float, float]:
        times = self.sequential.wall_s, self.parallel.wall_s
        assert times[0] is not None
        assert times[1] is not None
        return times[0], times[1]


def figures_of(pairs: Sequence[Pair]) -> Figures:
    """Return the figures of some answers; None where there are no answers.

    Speedups and parallelism are geometric means. Tokens per second count content, tags excluded.
    """
    if not pairs:
        return {"num_documents": 0, **dict.fromkeys(FIGURES)}
    # Geometric means: a speedup of 2 and one of 1/2 must cancel out.
    theoretical = geometric_mean(p.parallel.theoretical_speedup(p.sequential) for p in pairs)
    realised = geometric_mean(speed.realised_speedup(*pair.wall_s) for pair in pairs)
    num_tokens = sum(pair.parallel.num_content_tokens for pair in pairs)
    values = (
        mean(pair.parallel.num_threads or 1 for pair in pairs),
        theoretical,
        realised,
        speed.efficiency(realised, theoretical),
        geometric_mean(pair.parallel.parallelism for pair in pairs),
        num_tokens / sum(pair.wall_s[0] for pair in pairs),
        num_tokens / sum(pair.wall_s[1] for pair in pairs),
    )
    return {"num_documents": len(pairs), **dict(zip(FIGURES, values, strict=True))}


@dataclass(slots=True)
class ReplayReport:
    """All pairs of a replay, the answers that could not be decoded, and its conditions."""

    pairs: list[Pair] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)  # beyond the model's context
    was_interrupted: bool = False
    hardware: str = ""
    conditions: Mapping[str, str] = field(default_factory=dict)
    """Model, device, dtype, weights and positions, as JSON has them."""

    @property
    def multi_block(self) -> list[Pair]:
        return [pair for pair in self.pairs if pair.num_blocks >= MIN_BLOCKS]

    def to_dict(self) -> dict[str, object]:
        """Return the object that ``pasta replay --json`` prints."""
        return {
            "kind": Kind.REPLAYED.value,
            **figures_of(self.pairs),
            **self.conditions,
            "num_skipped": len(self.skipped),
            "multi_block": {**figures_of(self.multi_block), **self.conditions},
        }


_Requests = tuple[Record, Request, Request]  # an answer, decoded sequentially and in parallel


def replay(
    answers: Sequence[Record],
    loaded: LoadedModel,
    *,
    positions: PositionStrategy = PositionStrategy.PREDICT,
    max_threads: int | None = None,
    progress: Progress = lambda done, total: None,
) -> ReplayReport:
    """Decode each answer sequentially, then in parallel; few answers several times.

    Missing tag pieces are added to the model: the text is forced, so new rows need no training.
    After Ctrl-C the report has all pairs so far.
    """
    from pasta_lm.engines.local import engine, loading  # these import torch

    weights = loaded.kind.value if loaded.kind is Kind.RANDOM_WEIGHTS else "given"
    if not loaded.vocabulary.has_pieces:
        loaded, weights = loading.with_pieces(loaded), NEW_TAG_ROWS
    requests = [_encode(answer, loaded, positions, max_threads) for answer in answers]
    # Requests are decoded one at a time, so the largest one sets the size of the cache.
    num_entries = max((request.max_entries for _, *both in requests for request in both), default=1)
    device = str(loaded.device)
    hardware = next((name for name in loading.devices.devices() if name.startswith(device)), device)
    conditions = {"model": loaded.name, "device": device, "dtype": loaded.dtype_name}
    conditions |= {"weights": weights, "positions": positions.value, "strategy": PASTA}
    report = ReplayReport(hardware=hardware, conditions=conditions)
    try:
        _decode_all(engine.TorchEngine(loaded, pool_tokens=num_entries), requests, report, progress)
    except KeyboardInterrupt:
        report.was_interrupted = True
    return report


def _encode(
    answer: Record, loaded: LoadedModel, positions: PositionStrategy, max_threads: int | None
) -> _Requests:
    vocabulary, params = loaded.vocabulary, SamplingParams(max_threads=max_threads)
    # The engine refuses an empty prompt, and some records have no prompt.
    messages = answer.messages if answer.turns else answer.prompt
    prompt = vocabulary.encode_prompt(messages) or vocabulary.encode_text("\n")
    document = answer.document.with_lengths(vocabulary.count_tokens)
    alone = forced(sequential_request(prompt, SamplingParams()), document, vocabulary)
    join = loaded.join_with(positions)
    together = Request(prompt=prompt, params=params, positions=positions, join=join)
    return answer, alone, forced(together, document, vocabulary)


def _decode_all(
    engine: TorchEngine, requests: Sequence[_Requests], report: ReplayReport, progress: Progress
) -> None:
    num_runs = 1 if len(requests) >= MANY_ANSWERS else NUM_RUNS
    engine.warm_up(1 + max((len(answer.document.blocks) for answer, _, _ in requests), default=0))
    for item in requests[:1]:  # first passes allocate and compile, so they are not timed
        with suppress(RequestError):  # reported below, where the answer is decoded again
            _decode(engine, item, NUM_WARM_UPS)
    for index, item in enumerate(requests, start=1):
        try:
            report.pairs.append(_decode(engine, item, num_runs))
        except RequestError as exc:
            report.skipped.append((item[0].id, exc.message))
        progress(index, len(requests))


def _decode(engine: TorchEngine, requests: _Requests, num_runs: int) -> Pair:
    answer, *both = requests
    # One run directly after the other, so that a change of the machine's load affects both.
    runs = [[_run(engine, request) for request in both] for _ in range(num_runs)]
    fastest = (min(ways, key=lambda item: item.trace.wall_s) for ways in zip(*runs, strict=True))
    records = (AnswerRecord.of(item, is_timed=True) for item in fastest)
    return Pair(answer.id, len(answer.document.blocks), *records)


def _run(engine: TorchEngine, request: Request) -> Answer:
    num_shapes = engine.num_shapes
    (answer,) = engine.generate([request])[0]
    if engine.num_shapes > num_shapes:  # a GPU has compiled and captured meanwhile
        (answer,) = engine.generate([request])[0]
    if answer.finish_reason != "stop":  # ``bounded`` left room, so the context was too short
        raise RequestError("the answer needs positions beyond the model's context")
    return answer
