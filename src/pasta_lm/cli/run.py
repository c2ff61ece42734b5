"""``pasta run``: answer a prompt."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Annotated, cast

import typer

from pasta_lm.cli import flags, terminal
from pasta_lm.cli.flags import option, require_engine, require_one_of
from pasta_lm.cli.thread_view import live_threads, print_figures
from pasta_lm.engines.reading_order import ReadingOrder
from pasta_lm.engines.request import Answer, Finished, SamplingParams
from pasta_lm.errors import InputError, UsageError
from pasta_lm.interpreter.limits import FinishReason
from pasta_lm.models.names import BUILTIN, BUILTIN_QUALITY, require_model, resolve
from pasta_lm.strategies import requests
from pasta_lm.strategies.model import Pasta, Servers, baseline_of
from pasta_lm.strategies.requests import STRATEGIES, Options

INTRODUCTION = (
    "this is the built-in demonstration model, SmolLM2-135M-Instruct taught by this project: "
    f"{BUILTIN_QUALITY}"
)
BASELINE = "a model that was taught to fork is no baseline: {name} answers, taught without tags"
FILE_NAME = re.compile(r"\S+\.\w+|-")  # not there, but no question either
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed")
EXAMPLES = {
    "run": 'pasta run "Three ways to sleep better"',
    "fill": "pasta fill -f letter.txt 'Give the data as JSON.' --schema 'name, year int'",
    "ask": 'pasta ask letter.txt "Who wrote it?"',
    "teach": "pasta teach MODEL --parts labelled.jsonl --schema 'name, year int' --out DIR",
    "many": "pasta fill docs.jsonl --schema 'name, year int' --out filled.jsonl",
}


def run(
    prompt: flags.Prompt = None, file: flags.Files = None, model: flags.Model = None,
    dtype: flags.Dtype = None, device: flags.Device = None, threads: flags.Threads = None,
    strategy: Annotated[str, option("--strategy NAME", f"{', '.join(STRATEGIES)}.")] = "pasta",
    max_tokens: flags.MaxTokens = 1024, max_threads: flags.MaxThreads = None,
    temperature: flags.Temperature = None, repetition_penalty: flags.RepetitionPenalty = None,
    presence_penalty: flags.PresencePenalty = None,
    frequency_penalty: flags.FrequencyPenalty = None, top_p: flags.TopP = None,
    fork_bias: flags.ForkBias = None, think: flags.Think = None, seed: flags.Seed = 0,
    n: Annotated[int, option("--n -n N", "Number of answers.")] = 1,
    positions: Annotated[
        str | None, option("--positions STRATEGY", "predict or continue. Default: as trained.")
    ] = None,
    engine: flags.Engine = None, dialect: flags.Dialect = None,
    allow_inexact: flags.AllowInexact = False, json: flags.Json = False, trace: flags.Trace = None,
) -> None:  # fmt: skip
    """Answer a prompt with a model.

    In a terminal the threads are shown while they decode. Otherwise only the answer is printed.
    The sequential baseline of the built-in model is builtin-sequential; it answers the strategies
    that decode sequentially.
    """
    servers = require_engine(engine, dialect, allow_inexact=allow_inexact)
    require_one_of("--strategy", strategy, STRATEGIES)
    require_one_of("--positions", positions, requests.POSITIONS)
    settings = checked(
        max_tokens=max_tokens, max_threads=max_threads, temperature=temperature,
        repetition_penalty=repetition_penalty, presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty, top_p=top_p, fork_bias=fork_bias, seed=seed, n=n,
    )  # fmt: skip
    if len(file or ()) > 1:
        raise UsageError("run answers one file", hint="pasta fill takes several")
    check_trace(trace, n)
    (text,) = prompts("run", prompt, file)
    is_baseline = servers is None and strategy in requests.EXACT_SEQUENTIAL
    name = baseline_of(model or BUILTIN) if is_baseline else model
    loaded = load_model(name, servers, dtype=dtype, device=device)
    if is_baseline and name != model:
        terminal.say(BASELINE.format(name=name))
    params = loaded.sampling_params(**settings)
    if defaults := [name for name in loaded.engine.loaded.sampling if name not in settings]:
        how = ", ".join(f"{name} {getattr(params, name):g}" for name in defaults)
        terminal.say(f"sampling of the model's generation_config.json: {how}")
    options: Options = {"strategy": strategy, "positions": positions, "think": think}
    streams = n == 1 and not json and not sys.stdout.isatty()
    answers = _answer(loaded, text, params, options, streams=streams)
    _print(answers, params, as_json=json, streams=streams)
    if trace is not None:
        terminal.write_text(trace, answers[0].trace.to_json())


def checked(**settings: object) -> Options:
    """Drop the settings that were left out; a ``UsageError`` if another is out of its range."""
    kept = cast("Options", {name: value for name, value in settings.items() if value is not None})
    requests.sampling_params(None, kept)
    return kept


def load_model(
    model: str | None, servers: Servers | None = None, *, dtype: str | None, device: str | None,
    pool_tokens: int | None = None, cache_memory: str | None = None, shares_prefixes: bool = False,
) -> Pasta:  # fmt: skip
    """Load a model, or connect to servers that hold it; they refuse the flags of a local one."""
    with terminal.status(_loading(model or BUILTIN)):
        if servers is None:
            loaded = Pasta.from_pretrained(
                model or BUILTIN, dtype=dtype or "auto", device=device, pool_tokens=pool_tokens,
                cache_memory=cache_memory, shares_prefixes=shares_prefixes,
            )  # fmt: skip
            if model in (None, BUILTIN):
                terminal.say(INTRODUCTION)
            return loaded
        if model is None:
            raise UsageError("--engine needs --model", hint="name the folder that servers serve")
        local = {"--dtype": dtype, "--device": device, "pool_tokens": pool_tokens}
        local["cache_memory"] = cache_memory
        if refused := [flag for flag, value in local.items() if value]:
            hint = "the servers decide this when they start"
            raise UsageError(f"{', '.join(refused)} cannot be used with --engine", hint=hint)
        return servers.holding(model)


def hashes_of(model: str | None, servers: Servers | None) -> dict[str, str]:
    """Return the hashes of a model; of one that servers hold without those of its weights."""
    if servers is None:
        require_model(model or BUILTIN)
    from pasta_lm.models import load  # brings torch

    parts = [part for part in load.PARTS if servers is None or part != "weights"]
    with terminal.status(f"hashing the files of {model or BUILTIN}"):
        return load.hashes_of("model", model or BUILTIN, parts)


def _loading(model: str) -> str:
    is_here = os.path.exists(model) or model.startswith((".", "/", "~")) or resolve(model) != model
    is_offline = os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0")
    if is_here or is_offline or any(distributions(name=model)):
        return f"loading {model}"
    return f"trying the hub for {model} …"


def prompts(verb: str, prompt: str | None, files: Sequence[Path] | None) -> list[str]:
    """Return a prompt for each file: the text that was typed, and below it that of the file."""
    if prompt is None and not files:
        if sys.stdin.isatty():
            raise UsageError("there is no prompt", hint=EXAMPLES[verb])
        files = [Path(terminal.STDIN)]
    if prompt and FILE_NAME.fullmatch(prompt) and os.path.exists(prompt):
        raise UsageError(f"the prompt {prompt} is the name of a file", hint=f"-f {prompt} reads it")
    typed = [] if prompt is None else [prompt]
    texts = typed + [terminal.read_text(str(file)) for file in files or ()]
    names = ["the prompt", *map(str, files or ())] if typed or len(texts) > 1 else ["the prompt"]
    for name, text in zip(names[-len(texts) :], texts, strict=True):
        check_text(verb, name, text)
    return ["\n\n".join([*typed, text]) for text in texts[len(typed) :]] or typed


def check_text(verb: str, name: str, text: str) -> None:
    if not text.strip():
        raise UsageError(f"{name} is empty", hint=EXAMPLES[verb])
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise InputError(f"{name} is not UTF-8", hint="save it as UTF-8 and use --file")


def check_trace(trace: Path | None, num_answers: int) -> None:
    if trace is not None and num_answers > 1:
        raise UsageError("--trace writes the trace of one answer", hint="ask for one")
    if trace is not None and not trace.absolute().parent.is_dir():
        raise UsageError(f"no folder {trace.parent} for the trace", hint="make it first")


def _answer(
    model: Pasta, prompt: str, params: SamplingParams, options: Options, *, streams: bool
) -> list[Answer]:
    if params.n > 1:
        return model.samples(prompt, params, **options)
    request, answers = model.request(prompt, params, **options), list[Answer]()
    order = ReadingOrder(is_held=request.expansion is not None)
    with live_threads() as show:
        for event in model.engine.stream(request):
            show([event])
            if streams and (text := order.feed([event])):
                typer.echo(text, nl=False)
            if isinstance(event, Finished):
                answers.append(event.answer)
    return answers


def _print(answers: list[Answer], params: SamplingParams, *, as_json: bool, streams: bool) -> None:
    if as_json:
        objects = []
        for answer in answers:
            is_cut = answer.trace.finish_reason == FinishReason.LENGTH
            cut_at = answer.trace.num_tokens if is_cut else None
            used = {name: getattr(params, name) for name in SAMPLING}
            objects.append(answer.to_dict() | {"cut_at_tokens": cut_at, "sampling": used})
        terminal.print_json(objects[0] if len(objects) == 1 else {"choices": objects})
    else:
        for answer in answers:
            terminal.print_thought(answer.reasoning)
        text = "\n\n".join(answer.text for answer in answers)
        terminal.print_answer("" if streams else text)
    for answer in answers:
        print_figures(answer.trace, with_picture=not as_json)
