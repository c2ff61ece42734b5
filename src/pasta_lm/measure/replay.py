"""Replay annotated answers: decode given texts sequentially and in parallel, and compare the speed.

The tokens are forced, but the work is real: every forward pass feeds one token per live thread,
computes logits and samples a token, which is discarded.

Source: PASTA, section 5.1 (theoretical and realised speedup, parallelism).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from pasta_lm.engines.devices import devices
from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.local.loading import LoadedModel, with_pieces
from pasta_lm.engines.request import Answer, Request
from pasta_lm.errors import RequestError
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.interpreter.trace import Kind
from pasta_lm.learn.data.annotated import Record
from pasta_lm.learn.data.answer_record import AnswerRecord
from pasta_lm.measure import speed
from pasta_lm.measure.table import Figures, Report, mean
from pasta_lm.strategies import PASTA
from pasta_lm.strategies.requests import replay_request

NEW_TAG_ROWS = "given, tag rows added"
NUM_WARM_UPS = 2  # runs of the first answer before the clock counts
MANY_ANSWERS, NUM_RUNS = 10, 3  # fewer answers are decoded several times each
KEYS = "theoretical_speedup", "realised_speedup", "efficiency", "parallelism"
TITLES = {
    **speed.TITLES,
    "num_threads_mean": "threads, mean",
    "sequential_tokens_per_s": "tokens/s, sequential",
    "parallel_tokens_per_s": "tokens/s, parallel",
}
Progress = Callable[[int, int], None]


class Pair(NamedTuple):
    """An annotated answer, decoded in both ways."""

    answer: Record
    parallel: AnswerRecord
    sequential: AnswerRecord


@dataclass(slots=True)
class Replay:
    """All pairs of a replay, the answers that could not be decoded, and its conditions."""

    pairs: list[Pair] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)  # ids, and why not decoded
    was_interrupted: bool = False
    hardware: str = ""
    conditions: Mapping[str, str] = field(default_factory=dict)
    """Model, device, dtype, weights and positions, as JSON has them."""

    @property
    def notes(self) -> list[str]:
        is_new = self.conditions["weights"] == NEW_TAG_ROWS
        return [
            *["this model has no tag pieces; untrained rows are enough for forced text"] * is_new,
            *(f"answer {name} was left out: {reason}" for name, reason in self.skipped),
            *["interrupted; the figures are of the answers that were done"] * self.was_interrupted,
        ]

    def report(self) -> Report:
        report = Report("Replay", [f"hardware: {self.hardware}"])
        report.add((), {"kind": Kind.REPLAYED.value})
        several = [pair for pair in self.pairs if len(pair.answer.document.blocks) > 1]
        for path, pairs in (((), self.pairs), (("multi_block",), several)):
            report.add(path, _figures(pairs), TITLES, len(pairs))
            report.add(path, self.conditions)
        report.add((), {"num_skipped": len(self.skipped)})
        return report


def _figures(pairs: Sequence[Pair]) -> Figures:
    ours, baseline = [pair.parallel for pair in pairs], [pair.sequential for pair in pairs]
    figures = speed.speed(ours, baseline) | speed.timed_figures([*zip(ours, baseline, strict=True)])
    return {
        "num_documents": len(pairs),
        "num_threads_mean": mean([answer.num_threads or 1 for answer in ours]),
        **{key: figures[key] for key in KEYS},
        "sequential_tokens_per_s": figures["baseline_tokens_per_s"],
        "parallel_tokens_per_s": figures["tokens_per_s"],
    }


_Requests = tuple[Record, Request, Request]  # an answer, decoded sequentially and in parallel


def replay(
    answers: Sequence[Record], loaded: LoadedModel, *,
    positions: PositionStrategy = PositionStrategy.PREDICT, max_threads: int | None = None,
    progress: Progress = lambda done, total: None,
) -> Replay:  # fmt: skip
    """Decode each answer sequentially, then in parallel; few answers several times.

    Missing tag pieces are added to the model: the text is forced, so new rows need no training.
    After Ctrl-C the result has all pairs so far.
    """
    weights = loaded.kind.value if loaded.kind is Kind.RANDOM_WEIGHTS else "given"
    if not loaded.vocabulary.has_pieces:
        loaded, weights = with_pieces(loaded), NEW_TAG_ROWS
    requests = [requests_of(answer, loaded, positions, max_threads) for answer in answers]
    # Requests are decoded one at a time, so the largest one sets the size of the cache.
    num_entries = max((request.max_entries for _, *both in requests for request in both), default=1)
    device = str(loaded.device)
    hardware = next((name for name in devices() if name.startswith(device)), device)
    conditions = {"model": loaded.name, "device": device, "dtype": loaded.dtype_name}
    conditions |= {"weights": weights, "positions": positions.value, "strategy": PASTA}
    result = Replay(hardware=hardware, conditions=conditions)
    try:
        _decode_all(TorchEngine(loaded, pool_tokens=num_entries), requests, result, progress)
    except KeyboardInterrupt:
        result.was_interrupted = True
    return result


def requests_of(
    answer: Record, loaded: LoadedModel, positions: PositionStrategy, max_threads: int | None = None
) -> _Requests:
    vocabulary = loaded.vocabulary
    # The engine refuses an empty prompt, and some records have no prompt.
    messages = answer.messages if answer.turns else answer.prompt
    prompt = vocabulary.encode_prompt(messages) or vocabulary.encode_text("\n")
    document = answer.document.with_lengths(vocabulary.count_tokens)
    alone = replay_request(prompt, document.without_tags(), loaded, positions)
    return answer, alone, replay_request(prompt, document, loaded, positions, max_threads)


def _decode_all(
    engine: TorchEngine, requests: Sequence[_Requests], result: Replay, progress: Progress
) -> None:
    num_runs = 1 if len(requests) >= MANY_ANSWERS else NUM_RUNS
    engine.warm_up(1 + max((len(answer.document.blocks) for answer, _, _ in requests), default=0))
    for item in requests[:1]:  # first passes allocate and compile, so they are not timed
        with suppress(RequestError):  # reported below, where the answer is decoded again
            _decode(engine, item, NUM_WARM_UPS)
    for index, item in enumerate(requests, start=1):
        try:
            result.pairs.append(_decode(engine, item, num_runs))
        except RequestError as exc:
            result.skipped.append((item[0].id, exc.message))
        progress(index, len(requests))


def _decode(engine: TorchEngine, requests: _Requests, num_runs: int) -> Pair:
    answer, *both = requests
    # One run directly after the other, so that a change of the machine's load affects both.
    runs = [[_run(engine, request) for request in both] for _ in range(num_runs)]
    fastest = (min(ways, key=lambda item: item.trace.wall_s) for ways in zip(*runs, strict=True))
    sequential, parallel = (AnswerRecord.of(item, is_timed=True) for item in fastest)
    return Pair(answer, parallel, sequential)


def _run(engine: TorchEngine, request: Request) -> Answer:
    num_shapes = engine.num_shapes
    (answer,) = engine.generate([request])[0]
    if engine.num_shapes > num_shapes:  # a GPU has compiled and captured meanwhile
        (answer,) = engine.generate([request])[0]
    if answer.finish_reason != "stop":  # ``bounded`` left room, so the context was too short
        raise RequestError("the answer needs positions beyond the model's context")
    return answer
