"""Decode given annotated answers, sequentially and in parallel: what an engine makes of structure.

The text is forced, the work is real: one token a live thread a pass, logits and a sampled token
each time, discarded. Both runs of an answer follow each other in the same engine, so their ratio
is measured under the same conditions.

Source: PASTA, section 5.1 (theoretical and realised speedup, parallelism).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import geometric_mean, mean
from typing import TYPE_CHECKING, Any

from pasta_lm.engines.request import Answer, Request, SamplingParams
from pasta_lm.errors import RequestError, VocabularyError
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.interpreter.trace import Kind
from pasta_lm.language.document import Block, Document
from pasta_lm.language.events import Text
from pasta_lm.strategies import apar, pasta, sequential
from pasta_lm.strategies import skeleton_of_thought as sot
from pasta_lm.strategies.annotated import AnnotatedAnswer

if TYPE_CHECKING:
    from pasta_lm.engines.torch.engine import TorchEngine
    from pasta_lm.engines.torch.loading import LoadedModel
    from pasta_lm.engines.vocabulary import Vocabulary

REPLAYED = (pasta.NAME, apar.NAME, sot.NAME)
"""Strategies whose programs can be decoded again."""

Progress = Callable[[int, int], None]
"""Told how many answers are done, and of how many."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One answer, decoded both ways."""

    id: str
    num_blocks: int
    sequential_tokens: int
    """Fed tokens of the sequential run: its critical path."""
    critical_path: int
    content_tokens: int
    num_threads: int
    sequential_s: float
    parallel_s: float

    @property
    def theoretical_speedup(self) -> float:
        """Return the sequential run's fed tokens / critical path."""
        return self.sequential_tokens / self.critical_path

    @property
    def realised_speedup(self) -> float:
        """Return the wall clock of the sequential run / that of the parallel one."""
        return self.sequential_s / self.parallel_s


@dataclass(slots=True)
class ReplayReport:
    """All pairs, and what could not be decoded."""

    model: str
    device: str
    dtype: str
    has_random_weights: bool
    positions: str
    strategy: str = pasta.NAME
    pairs: list[Pair] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    """Id and reason of answers that the model's context or the pool cannot hold."""
    was_interrupted: bool = False
    """Whether Ctrl-C ended it before the last answer; the figures are of those that were done."""

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``pasta replay --json`` prints."""
        weights = Kind.RANDOM_WEIGHTS.value if self.has_random_weights else "given"
        setting = {
            "device": self.device,
            "dtype": self.dtype,
            "model": self.model,
            "weights": weights,
            "positions": self.positions,
            "strategy": self.strategy,
        }
        multi = [pair for pair in self.pairs if pair.num_blocks >= 2]
        return {
            "kind": Kind.REPLAYED.value,
            "num_documents": len(self.pairs),
            **figures(self.pairs),
            **setting,
            "num_skipped": len(self.skipped),
            "multi_block": {"num_documents": len(multi), **figures(multi), **setting},
        }


def figures(pairs: Sequence[Pair]) -> dict[str, float | None]:
    """Return the figures of some pairs: speedups are geometric means; None where there are none.

    Efficiency is realised / theoretical speedup. Tokens per second count content, tags excluded.
    """
    if not pairs:
        names = ["num_threads_mean", "theoretical_speedup", "realised_speedup", "efficiency"]
        names += ["parallelism", "sequential_tokens_per_s", "parallel_tokens_per_s"]
        return dict.fromkeys(names)
    theoretical = geometric_mean(pair.theoretical_speedup for pair in pairs)
    realised = geometric_mean(pair.realised_speedup for pair in pairs)
    num_tokens = sum(pair.content_tokens for pair in pairs)
    return {
        "num_threads_mean": mean(pair.num_threads for pair in pairs),
        "theoretical_speedup": theoretical,
        "realised_speedup": realised,
        "efficiency": realised / theoretical,
        "parallelism": geometric_mean(pair.content_tokens / pair.critical_path for pair in pairs),
        "sequential_tokens_per_s": num_tokens / sum(pair.sequential_s for pair in pairs),
        "parallel_tokens_per_s": num_tokens / sum(pair.parallel_s for pair in pairs),
    }


def replay(
    answers: Sequence[AnnotatedAnswer],
    loaded: LoadedModel,
    *,
    positions: PositionStrategy = PositionStrategy.PREDICT,
    strategy: str = pasta.NAME,
    max_threads: int | None = None,
    progress: Progress | None = None,
) -> ReplayReport:
    """Decode each answer sequentially, then in parallel.

    Args:
        answers: What to decode.
        loaded: A model with tag pieces.
        positions: Where main goes on after a promise.
        strategy: By whose table blocks are decoded, see ``REPLAYED``; rivals have no promises.
        max_threads: Threads that decode in the same pass; None: all.
        progress: Told after each answer.

    Returns:
        The report; after Ctrl-C that of the answers that were done.

    Raises:
        VocabularyError: the model has no tag pieces.
    """
    from pasta_lm.engines.torch.engine import TorchEngine

    report = ReplayReport(
        loaded.name,
        str(loaded.device),
        str(loaded.dtype).removeprefix("torch."),
        loaded.kind is Kind.RANDOM_WEIGHTS,
        positions.value if strategy == pasta.NAME else apar.POSITIONS.value,
        strategy,
    )
    requests: list[tuple[Request, Request]] = []
    kept: list[AnnotatedAnswer] = []
    for answer in answers:
        try:
            requests.append(_requests(answer, loaded, strategy, positions, max_threads))
            kept.append(answer)
        except (ValueError, VocabularyError) as exc:
            if strategy == pasta.NAME:  # every answer can be said in it
                raise
            report.skipped.append((answer.id, str(exc)))
    largest = max((_need(request) for pair in requests for request in pair), default=1)
    engine = TorchEngine(loaded, pool_tokens=largest)
    _warm_up(engine, requests)
    try:
        for index, (answer, pair) in enumerate(zip(kept, requests, strict=True), start=1):
            try:
                report.pairs.append(_decode(answer, engine, *pair))
            except RequestError as exc:
                report.skipped.append((answer.id, exc.message))
            if progress is not None:
                progress(index, len(kept))
    except KeyboardInterrupt:
        report.was_interrupted = True
    return report


def _requests(
    answer: AnnotatedAnswer,
    loaded: LoadedModel,
    strategy: str,
    positions: PositionStrategy,
    max_threads: int | None,
) -> tuple[Request, Request]:
    """Return the sequential and the parallel request of one answer."""
    vocabulary = loaded.vocabulary
    prompt = vocabulary.encode_prompt(answer.prompt) or vocabulary.encode_text("\n")
    document = answer.document.with_lengths(vocabulary.count_tokens)
    one = bounded(sequential.replay(prompt, document, vocabulary, SamplingParams()), None)
    if strategy == sot.NAME:
        return one, _by_points(answer, vocabulary, max_threads)
    if strategy == apar.NAME:
        many = apar.replay(prompt, document, vocabulary, SamplingParams())
    else:
        many = pasta.replay(prompt, document, vocabulary, SamplingParams(), positions)
    return one, bounded(many, max_threads)


def _by_points(answer: AnnotatedAnswer, vocabulary: Vocabulary, max_threads: int | None) -> Request:
    """Return the request of an answer by points; one that has none is its own only point."""
    document = answer.document
    if not document.blocks:
        document = Document((Block("", None, (Text(document.plain_text),)),))
    asked = sot.replay(answer.prompt or "\n", document, vocabulary, SamplingParams())
    assert asked.expansion is not None
    starts = asked.expansion.starts(sot.skeleton_of(sot.blocks_of(document)))
    return bounded(asked, max_threads, sum(len(start.prefix) for start in starts))


def bounded(request: Request, max_threads: int | None, num_given: int = 0) -> Request:
    """Give a request room for exactly its forced tokens and their end, and what it is given."""
    assert request.forced is not None
    blocks = request.forced.blocks
    num_tokens = num_given + len(request.forced.main) + sum(len(block) + 2 for block in blocks)
    params = SamplingParams(
        max_tokens=num_tokens + 1, max_threads=max_threads, max_blocks=len(blocks)
    )
    return replace(request, params=params)


def _need(request: Request) -> int:
    return len(request.prompt) + request.params.max_tokens


def _warm_up(engine: TorchEngine, requests: Sequence[tuple[Request, Request]]) -> None:
    """Decode one answer before the clock counts: first passes allocate and compile."""
    for request in requests[0] if requests else ():
        try:
            engine.generate([request])
        except RequestError:
            return


def _decode(answer: AnnotatedAnswer, engine: TorchEngine, one: Request, many: Request) -> Pair:
    alone, together = (_run(engine, request) for request in (one, many))
    return Pair(
        answer.id,
        len(answer.document.blocks),
        alone.trace.critical_path,
        together.trace.critical_path,
        together.trace.num_content_tokens,
        len(together.trace.threads),
        alone.trace.wall_s,
        together.trace.wall_s,
    )


def _run(engine: TorchEngine, request: Request) -> Answer:
    (answer,) = engine.generate([request])[0]
    if answer.finish_reason != "stop":
        raise RequestError("the answer needs positions beyond the model's context")
    return answer
