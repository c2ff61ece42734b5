"""``pasta demo``: ten fields at once, and an answer in threads, each beside one thread."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from json import loads
from typing import Annotated, TypeVar

import typer

from pasta_lm.cli import flags, terminal
from pasta_lm.cli.flags import option
from pasta_lm.cli.run import load_model
from pasta_lm.engines.request import Answer, SamplingParams, StructuredOutputs
from pasta_lm.errors import ModelNotFoundError
from pasta_lm.interpreter.limits import FinishReason
from pasta_lm.machine import NUM_CORES, OtherProcesses
from pasta_lm.models.names import PASTA_15B
from pasta_lm.strategies.model import EXAMPLE, Pasta

DOCUMENT = """\
Booking 1845 at Hotel Aurora
Guest: Rui Costa
City: Lisbon
Room: double
Arrival: 14 May
Nights: 3
Adults: 2
Price: 145 euros
Breakfast: included
Email: rui.costa@example.com"""
PROMPT = f"{DOCUMENT}\n\nGive the data as JSON."
FIELDS: dict[str, int | str] = {
    "number": 1845, "hotel": "Hotel Aurora", "guest": "Rui Costa", "city": "Lisbon",
    "room": "double", "arrival": "14 May", "nights": 3, "adults": 2, "price": 145,
    "email": "rui.costa@example.com",
}  # fmt: skip
"""The fields of the document, with their right values."""
SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {
        name: {"type": "integer" if isinstance(value, int) else "string"}
        for name, value in FIELDS.items()
    },
    "required": [*FIELDS],
}
QUESTION_15B = "What are three benefits of drinking tea?"
MAX_TOKENS = 300
MAX_TURNS, SHORT_S = 3, 10.0  # runs that take longer have one turn
SOME_LOAD = 0.5  # cores that other processes use


def demo(
    question: Annotated[
        str | None, typer.Argument(metavar="[QUESTION]", help="For the answer in threads.")
    ] = None,
    model: Annotated[
        str | None,
        option("--model -m MODEL", "Default: pasta-1.5b where its base is here, else builtin."),
    ] = None,
    dtype: flags.Dtype = None,
    threads: flags.Threads = None,
) -> None:
    """Decode ten fields at once and an answer in threads, each beside the same by one thread.

    Seconds are the least of three turns, if one is short. Nothing is downloaded.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read once, when transformers is imported
    loaded = _load(model, dtype)
    loaded.generate("Hello!", max_tokens=8)  # the first passes are slower
    others = OtherProcesses()
    ratios = [_show_fields(loaded)]
    if loaded.has_tag_pieces:
        is_15b = loaded.engine.loaded.name == PASTA_15B
        ratios.append(_show_threads(loaded, question or (QUESTION_15B if is_15b else EXAMPLE)))
    elif question:
        terminal.say("the question is left out: the model was not taught to answer in threads")
    if min(ratios) < 1 or others.num_cores > SOME_LOAD:
        cores = f"{others.num_cores:.1f} of the {NUM_CORES} cores"
        terminal.say(f"other processes used {cores} meanwhile: seconds and ratios suffer from that")


def by_json_mode(model: Pasta) -> Answer:
    form = StructuredOutputs(json=SCHEMA)
    params = SamplingParams(max_tokens=MAX_TOKENS, structured_outputs=form)
    return model.generate(PROMPT, params, strategy="sequential")


def in_threads(model: Pasta, question: str) -> Answer:
    return model.generate(question, max_tokens=MAX_TOKENS)


def by_one_thread(model: Pasta, question: str, answer: Answer) -> Answer:
    """Return the same text, decoded by one thread: its tokens are forced, the work is real."""
    request = model.replay_request(question, answer.document.without_tags())
    return model.engine.generate([request])[0][0]


def num_right(data: dict[str, object]) -> int:
    return sum(data.get(name) == value for name, value in FIELDS.items())


def _load(model: str | None, dtype: str | None) -> Pasta:
    if model is None:
        try:
            return load_model(PASTA_15B, dtype=dtype, device=None)
        except ModelNotFoundError:
            terminal.say("the base of pasta-1.5b is not here (PASTA_BASE=FOLDER names it)")
    return load_model(model, dtype=dtype, device=None)


A = TypeVar("A")
B = TypeVar("B")


def _turns(first: Callable[[], A], second: Callable[[], B]) -> list[tuple[A, B]]:
    began_s, runs = time.monotonic(), [(first(), second())]
    while len(runs) < MAX_TURNS and time.monotonic() - began_s < SHORT_S:
        runs.append((first(), second()))
    return runs


def _show_fields(model: Pasta) -> float:
    """Print the fields decoded in both ways; return how many times faster parts are."""
    runs = _turns(lambda: model.fill(PROMPT, SCHEMA), partial(by_json_mode, model))
    parts, sequential = runs[0]
    is_whole = sequential.finish_reason == FinishReason.STOP
    datas = [parts.data, loads(sequential.text) if is_whole else {}]
    seconds = [min(run[i].trace.wall_s for run in runs) for i in (0, 1)]
    rows = [[name, *(str(data.get(name, "")) for data in datas)] for name in FIELDS]
    rows.append(["right", *(f"{num_right(data)} of {len(FIELDS)}" for data in datas)])
    rows.append(["seconds", *(f"{value:.2f}" for value in seconds)])
    typer.echo(f"> {PROMPT}\n")
    terminal.print_table(["field", "all at once", "JSON mode"], rows, text_columns=range(3))
    ratio, cut = seconds[1] / seconds[0], "" if is_whole else ", but JSON mode was cut"
    typer.echo(f"\nTen fields at once: {ratio:.1f} times as fast{cut}.\n")
    return ratio


def _show_threads(model: Pasta, question: str) -> float:
    """Print an answer and both its times; return how many times faster the threads are."""
    answer = in_threads(model, question)
    threads = partial(in_threads, model, question)
    runs = _turns(threads, partial(by_one_thread, model, question, answer))
    seconds = [min(run[i].trace.wall_s for run in runs) for i in (0, 1)]
    typer.echo(f"> {question}\n\n{terminal.harmless(answer.text)}\n")
    num_threads, ratio = len(answer.trace.threads), seconds[1] / seconds[0]
    typer.echo(f"{num_threads} threads: {seconds[0]:.2f} s; same text by one: {seconds[1]:.2f} s.")
    cut = "" if answer.finish_reason == FinishReason.STOP else ", but it was cut"
    typer.echo(f"The answer in threads: {ratio:.2f} times as fast{cut}.")
    return ratio
