"""The benchmark ``pasta bench engine``: the time of a pass over its rows, and peers beside it.

Rounds go through all numbers of rows and all peers in turn, so that a slow moment of the machine
hits every figure alike; figures are medians over the rounds.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from pasta_lab.evaluate import llama_cpp
from pasta_lm.errors import InputError, UsageError
from pasta_lm.models.annotated import Record, read_annotated

if TYPE_CHECKING:
    from pasta_lm.engines.local.loading import LoadedModel

GENERATE, LLAMA_CPP = "generate", "llama.cpp"
PEERS = (GENERATE, LLAMA_CPP)
NUM_GENERATED = 48  # tokens of a sequential answer
NUM_ROUNDS = 3
MAX_ROWS = 64

Figures = dict[str, Any]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineBenchmark:
    """What is measured."""

    rows: tuple[int, ...] = (1, 2, 4, 8, 16)
    contexts: tuple[int, ...] = (128,)  # tokens of the prompt
    peers: tuple[str, ...] = PEERS
    num_cpu_threads: int = 1

    def __post_init__(self) -> None:
        """Refuse settings that cannot be measured, as a ``UsageError``."""
        if not self.rows or not all(1 <= count <= MAX_ROWS for count in self.rows):
            raise UsageError(f"--rows must be numbers from 1 to {MAX_ROWS}, such as 1,2,4")
        if not self.contexts or min(self.contexts) < 1:
            raise UsageError("--context must be numbers of tokens, such as 128,1024")
        if unknown := set(self.peers) - set(PEERS):
            raise UsageError(
                f"unknown peer {min(unknown)!r}", hint=f"any of {', '.join(PEERS)}, or none"
            )


def measure_engine(
    loaded: LoadedModel,
    settings: EngineBenchmark,
    gguf: Callable[[], Path | None],
    progress: Progress,
) -> Figures:
    """Time passes of an engine, sequential decoding, and the peers.

    Args:
        loaded: The model; rows are added for tag pieces that it lacks.
        settings: What is measured.
        gguf: Writes the same weights for llama.cpp, or returns None; called if it is installed.
        progress: Called with the number of done and of all rounds.

    Returns:
        The object that ``pasta bench engine --json`` prints: times in milliseconds.

    Raises:
        UsageError: the model's context is shorter than a measurement.
    """
    from pasta_lm.engines.local import timing
    from pasta_lm.engines.local.loading import with_pieces

    if not loaded.vocabulary.has_pieces:
        loaded = with_pieces(loaded)
    _check_context(loaded, settings)
    first = settings.contexts[0]
    with ExitStack() as stack:
        peers = _Peers(
            _untouched(loaded) if GENERATE in settings.peers else None,
            _llama_cpp(settings, gguf, timing.tokens(loaded.vocabulary, first), stack),
        )
        times = _rounds(loaded, settings, peers, progress)
    token = median(times.sequential) / NUM_GENERATED
    one_row = median(times.steps[first].get(1, [token]))
    return {
        **timing.describe_run(loaded),
        "context": first,
        "step_ms": _milliseconds(times.steps[first]),
        "contexts": {str(context): _milliseconds(table) for context, table in times.steps.items()},
        "sequential_tokens_per_s": round(1 / token, 2),
        "weight_bytes": timing.read_bytes(loaded),
        "reading_ms": round(1e3 * median(times.reading), 3),
        "bandwidth_share": round(median(times.reading) / one_row, 4),
        "peers": {
            GENERATE: _generated(times.generate),
            LLAMA_CPP: {"step_ms": _milliseconds(times.llama_cpp)} if times.llama_cpp else None,
        },
    }


def measure_replay(
    loaded: LoadedModel, answers: Path, limit: int | None, progress: Progress
) -> Figures:
    """Replay annotated answers: the object that ``pasta replay --json`` prints.

    Raises:
        InputError: no answer of the file can be read.
    """
    from pasta_lm.strategies.replay import replay

    records = read_some(answers, limit)
    return replay(records, loaded, positions=loaded.positions, progress=progress).to_dict()


def read_some(path: Path, limit: int | None = None) -> list[Record]:
    """Read the annotated answers of a file that can be read, ``limit`` at most.

    Raises:
        InputError: there is no such file, or no row can be read; the first problem is named.
    """
    records, problems = read_annotated(path, limit)
    if not records:
        reason = f": line {problems[0].line}: {problems[0].reason}" if problems else ""
        raise InputError(f"{path} has no annotated answer that can be read{reason}")
    return records


@dataclass(frozen=True, slots=True)
class _Times:
    """Seconds, one of each round."""

    steps: dict[int, dict[int, list[float]]]
    """By context and by rows."""
    sequential: list[float] = field(default_factory=list)
    generate: list[float] = field(default_factory=list)
    llama_cpp: dict[int, list[float]] = field(default_factory=dict)
    """By rows."""
    reading: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Peers:
    """What is timed beside the engine, in the same rounds; None: not at all."""

    generate: LoadedModel | None
    llama_cpp: llama_cpp.Decoder | None


def _untouched(loaded: LoadedModel) -> LoadedModel:
    """Return a copy for ``generate``: the engine lays out the weights of its model anew."""
    return replace(loaded, model=copy.deepcopy(loaded.model))


def _rounds(
    loaded: LoadedModel, settings: EngineBenchmark, peers: _Peers, progress: Progress
) -> _Times:
    from pasta_lm.engines.local import timing
    from pasta_lm.engines.local.engine import TorchEngine

    first, most = settings.contexts[0], max(settings.rows)
    sizes = [timing.num_entries(most, context) for context in settings.contexts]
    engine = TorchEngine(loaded, pool_tokens=max(sizes) + NUM_GENERATED)
    num_bytes = timing.read_bytes(loaded)
    timing.step_s(engine, 2, first)  # first passes allocate and compile
    times = _Times({one: {count: [] for count in settings.rows} for one in settings.contexts})
    for done in range(1, NUM_ROUNDS + 1):
        for context, table in times.steps.items():
            for count, found in table.items():
                found.append(timing.step_s(engine, count, context))
                if peers.llama_cpp is not None and context == first:
                    peer = times.llama_cpp.setdefault(count, [])
                    peer.append(peers.llama_cpp.step_s(count))
        times.sequential.append(timing.sequential_s(engine, first, NUM_GENERATED))
        if peers.generate is not None:
            times.generate.append(timing.generate_s(peers.generate, first, NUM_GENERATED))
        times.reading.append(timing.reading_s(num_bytes, loaded.device))
        progress(done, NUM_ROUNDS)
    return times


def _check_context(loaded: LoadedModel, settings: EngineBenchmark) -> None:
    from pasta_lm.engines.local.timing import num_entries

    needed = max(num_entries(1, context) for context in settings.contexts) + 3 * max(settings.rows)
    last = loaded.max_position
    if last is not None and needed > last:
        raise UsageError(
            f"{loaded.name} has positions up to {last}, and the measurement needs {needed}",
            hint="lower --context or --rows",
        )


def _milliseconds(seconds: Mapping[int, Sequence[float]]) -> dict[str, float]:
    return {str(count): round(1e3 * median(found), 3) for count, found in seconds.items()}


def _generated(seconds: Sequence[float]) -> Figures | None:
    return {"tokens_per_s": round(NUM_GENERATED / median(seconds), 2)} if seconds else None


def _llama_cpp(
    settings: EngineBenchmark,
    gguf: Callable[[], Path | None],
    prompt: Sequence[int],
    stack: ExitStack,
) -> llama_cpp.Decoder | None:
    """Open llama.cpp; None if it is not asked for, not installed, or has no model."""
    if LLAMA_CPP not in settings.peers or not llama_cpp.is_installed():
        return None
    file = gguf()
    if file is None:
        return None
    rows, num_cpu_threads = max(settings.rows), settings.num_cpu_threads
    return stack.enter_context(llama_cpp.Decoder(file, rows, prompt, num_cpu_threads).opened())
