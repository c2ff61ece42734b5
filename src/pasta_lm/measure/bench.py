"""The benchmark of one engine: time of a pass by its rows, sequential speed, latency under load.

Tokens are forced or arbitrary, so any weights will do. Rounds go through all numbers of rows in
turn, so that a slow moment of the machine hits every figure alike; figures are medians over the
rounds. Under load all requests arrive at once, and both strategies decode the same text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from statistics import median

import torch
from torch import Tensor

from pasta_lm.engines.local import planning
from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.local.loading import LoadedModel, with_pieces
from pasta_lm.engines.request import Finished, Request, SamplingParams, unless_failed
from pasta_lm.errors import RequestError, UsageError
from pasta_lm.interpreter.trace import Kind
from pasta_lm.language.document import parse
from pasta_lm.language.parser import Form
from pasta_lm.language.tags import PROMISE_OPEN, closing_piece
from pasta_lm.learn.data.annotated import Record
from pasta_lm.machine import describe_machine
from pasta_lm.measure.replay import requests_of
from pasta_lm.measure.table import Figures, Table
from pasta_lm.models.encoded import EncodedDocument
from pasta_lm.models.load import matrix_of
from pasta_lm.models.vocabulary import Vocabulary

MAX_ROWS = 64
NUM_ROUNDS = 3
NUM_CONTEXT = 128  # tokens of the prompt in timed passes
NUM_DECODED = 48  # tokens of a timed sequential answer
NUM_STEADY = 24  # timed passes of each number of rows, in which all its threads decode
NUM_READS = 3  # times that the weights are read; the fastest counts
COLUMNS = 4096  # columns of the matrix that stands for the weights
TEXT = " the rain falls on the green hills, and the river carries it to the sea."  # any will do
LOAD_PROMPT = "Describe spring, summer, autumn and winter."
SEASONS = "".join(
    f'- {name}:<async topic="{name}"> {3 * TEXT}</async>\n'
    for name in ("spring", "summer", "autumn", "winter")
)
LOAD_ANSWER = f"""\
A year has four seasons, and each of them has a character of its own.

{SEASONS}<sync/>
Together they make the year."""

Progress = Callable[[int, int], None]  # called with the number of done and of all rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSettings:
    """The measurements of a benchmark."""

    rows: tuple[int, ...] = (1, 2, 4, 8, 16)  # threads that feed one token each in a pass
    requests: tuple[int, ...] = ()  # requests at once; none: latency under load is not measured

    def __post_init__(self) -> None:
        if not self.rows or not all(1 <= count <= MAX_ROWS for count in self.rows):
            raise UsageError(f"--rows must be numbers from 1 to {MAX_ROWS}, such as 1,2,4")
        if self.requests and min(self.requests) < 1:
            raise UsageError("--requests must be numbers from 1, such as 1,4,16")


def bench(
    loaded: LoadedModel, settings: BenchSettings, progress: Progress = lambda done, total: None,
    beside: Sequence[Callable[[], None]] = (),
) -> Figures:  # fmt: skip
    """Return the object that ``pasta bench --json`` prints.

    ``step_ms`` are milliseconds of a pass by its rows, ``bandwidth_share`` is the time of reading
    the weights once / the time of a pass of one row, ``load`` has median seconds from the arrival
    of a request to the end of its answer. ``beside`` times other engines, each once a round.
    """
    if not loaded.vocabulary.has_pieces:
        loaded = with_pieces(loaded)
    max_rows = max(*settings.rows, planning.MAX_ROWS[loaded.device.type])
    pool_tokens = _pool_tokens(loaded, settings)
    engine = TorchEngine(loaded, pool_tokens=pool_tokens, max_rows=max_rows)
    steps, whole, reading = _rounds(engine, settings, progress, beside)
    load: dict[str, dict[str, float]] = {}
    for done, count in enumerate(settings.requests, start=NUM_ROUNDS + 1):
        solo, forked = (median(latencies_s(engine, [x] * count)) for x in load_requests(loaded))
        load[str(count)] = {"sequential_s": round(solo, 4), "pasta_s": round(forked, 4)}
        progress(done, NUM_ROUNDS + len(settings.requests))
    token_s = median(whole) / NUM_DECODED
    gpu = torch.cuda.get_device_name(loaded.device) if loaded.device.type == "cuda" else "none"
    figures: Figures = {
        "kind": (loaded.kind if loaded.kind is Kind.RANDOM_WEIGHTS else Kind.REPLAYED).value,
        "model": loaded.name, "dtype": loaded.dtype_name,
        "machine": describe_machine(gpu, torch.get_num_threads()),
        "step_ms": milliseconds(steps), "sequential_tokens_per_s": round(1 / token_s, 2),
        "bandwidth_share": round(median(reading) / median(steps.get(1, [token_s])), 4),
    }  # fmt: skip
    return figures | ({"load": load} if load else {})


def _rounds(
    engine: TorchEngine, settings: BenchSettings, progress: Progress,
    beside: Sequence[Callable[[], None]],
) -> tuple[dict[int, list[float]], list[float], list[float]]:  # fmt: skip
    """Return seconds of passes by rows, of whole answers, and of reading the weights once."""
    steps: dict[int, list[float]] = {count: [] for count in settings.rows}
    whole, reading = list[float](), list[float]()
    num_bytes = read_bytes(engine.loaded)
    step_s(engine, 2)  # first passes allocate and compile
    for done in range(1, NUM_ROUNDS + 1):
        for count, times in steps.items():
            times.append(step_s(engine, count))
        whole.append(sequential_s(engine))
        reading.append(reading_s(num_bytes, engine.loaded.device))
        for measure in beside:
            measure()
        progress(done, NUM_ROUNDS + len(settings.requests))
    return steps, whole, reading


def tables(figures: Figures) -> list[Table]:
    load = [[count, *seconds.values()] for count, seconds in figures.get("load", {}).items()]
    speed = {"tokens/s": figures["sequential_tokens_per_s"]}
    speed["share of the bandwidth limit"] = figures["bandwidth_share"]
    return [
        Table(["rows", "ms a pass"], [*figures["step_ms"].items()], digits=2),
        Table(["sequential", ""], [*speed.items()], digits=2),
        *[Table(["requests: median latency, s", "sequential", "pasta"], load, digits=2)]
        * bool(load),
    ]


def milliseconds(seconds: Mapping[int, Sequence[float]]) -> dict[str, float]:
    return {str(count): round(1e3 * median(times), 3) for count, times in seconds.items()}


def prompt_of(vocabulary: Vocabulary) -> tuple[int, ...]:
    return _tokens(vocabulary, NUM_CONTEXT)


def _tokens(vocabulary: Vocabulary, count: int) -> tuple[int, ...]:
    return tuple(islice(cycle(vocabulary.encode_text(TEXT)), count))


def _pool_tokens(loaded: LoadedModel, settings: BenchSettings) -> int:
    longest, last = NUM_CONTEXT + 4 * MAX_ROWS + NUM_STEADY, loaded.max_position
    if last is not None and longest > last:
        problem = f"{loaded.name} has positions up to {last}, and the benchmark needs {longest}"
        raise UsageError(problem, hint="name a model with a longer context")
    by_rows = NUM_CONTEXT + max(_num_entries(count) for count in (2, *settings.rows))
    by_load = max(request.max_entries for request in load_requests(loaded))
    return max(by_rows, max(settings.requests, default=0) * by_load) + NUM_DECODED


def step_s(engine: TorchEngine, num_rows: int) -> float:
    """Return the median seconds of a pass in which each of several threads feeds one token."""
    vocabulary = engine.loaded.vocabulary
    blocks: tuple[tuple[int, ...], ...] = ()
    first, main = 8, _tokens(vocabulary, NUM_STEADY + 16)
    if num_rows > 1:
        first = 3 * num_rows + 4
        block = _tokens(vocabulary, 3 * num_rows + NUM_STEADY + 8)
        topic = next(token for token in block if vocabulary.token_text(token).strip().isalpha())
        opening, closing = map(vocabulary.piece_id, (PROMISE_OPEN, closing_piece(6)))
        # Main forks all blocks and ends, so that later only blocks are decoded.
        main, blocks = (opening, topic, closing) * num_rows, (block,) * num_rows
    params = SamplingParams(max_tokens=_num_entries(num_rows), max_blocks=max(1, len(blocks)))
    forced, prompt = EncodedDocument(main=main, blocks=blocks), prompt_of(vocabulary)
    request = Request(prompt=prompt, params=params, forced=forced, forks=num_rows > 1)
    ends = engine.generate([request])[0][0].trace.step_s
    steady = ends[first : first + NUM_STEADY]
    return median(after - before for before, after in zip(steady, steady[1:], strict=False))


def _num_entries(num_rows: int) -> int:
    return NUM_CONTEXT + num_rows * (3 * num_rows + NUM_STEADY + 16) + 64


def sequential_s(engine: TorchEngine) -> float:
    params = SamplingParams(max_tokens=NUM_DECODED, ignore_eos=True)
    prompt = prompt_of(engine.loaded.vocabulary)
    began = time.perf_counter()
    engine.generate([Request(prompt=prompt, params=params, forks=False)])
    return time.perf_counter() - began


def read_bytes(loaded: LoadedModel) -> int:
    """Return the bytes of weights that a pass of one row reads: all but an untied input matrix."""
    model = loaded.model
    inputs, outputs = map(matrix_of, (model.get_input_embeddings(), model.get_output_embeddings()))
    parts = {parameter.data_ptr(): parameter for parameter in model.parameters()}
    if inputs.data_ptr() != outputs.data_ptr():
        parts.pop(inputs.data_ptr(), None)
    return sum(item.nbytes for item in parts.values())


def reading_s(num_bytes: int, device: torch.device) -> float:
    """Return the least seconds in which so many bytes were read once, as a product or a sum."""
    rows = max(1, num_bytes // (4 * COLUMNS))
    matrix = torch.ones(rows, COLUMNS, device=device)
    vector = torch.ones(COLUMNS, device=device)
    kernels: tuple[Callable[[], Tensor], ...] = (lambda: matrix @ vector, matrix.sum)
    is_gpu, spent = device.type == "cuda", list[float]()
    wait = partial(torch.cuda.synchronize, device) if is_gpu else torch.cpu.synchronize
    for _ in range(NUM_READS):
        for kernel in kernels:
            wait()
            began = time.perf_counter()
            kernel()
            wait()
            spent.append(time.perf_counter() - began)
    return min(spent) * num_bytes / (rows * COLUMNS * 4)


def load_requests(loaded: LoadedModel) -> tuple[Request, Request]:
    answer = Record("load", LOAD_PROMPT, parse(LOAD_ANSWER, Form.ANNOTATOR))
    _, alone, forked = requests_of(answer, loaded, loaded.positions)
    return alone, forked


def latencies_s(engine: TorchEngine, requests: Sequence[Request]) -> list[float]:
    began, times = time.perf_counter(), list[float]()
    numbers = [engine.submit(request) for request in requests]
    try:
        while engine.has_work:
            events = [unless_failed(event) for _, event in engine.step()]
            answers = [event.answer for event in events if isinstance(event, Finished)]
            if any(answer.finish_reason != "stop" for answer in answers):
                raise RequestError("an answer needs positions beyond the model's context")
            times += [time.perf_counter() - began] * len(answers)
    finally:
        for number in numbers:
            engine.cancel(number)
    return times
