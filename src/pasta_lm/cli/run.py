"""``pasta run``, ``fill`` and ``ask``: answer a prompt, fill a schema, answer questions."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from json import loads
from pathlib import Path
from typing import Annotated, cast

import typer

from pasta_lm.cli import flags, terminal
from pasta_lm.cli.flags import option, require_engine, require_one_of
from pasta_lm.cli.thread_view import live_threads, print_figures
from pasta_lm.engines.request import Answer, Finished, SamplingParams
from pasta_lm.errors import InputError, PastaError, UsageError
from pasta_lm.interpreter.limits import FinishReason
from pasta_lm.models.names import BUILTIN, BUILTIN_QUALITY
from pasta_lm.strategies.model import Pasta, Servers, baseline_of
from pasta_lm.strategies.parts import MAX_FIELDS, PartsAnswer
from pasta_lm.strategies.requests import (
    EXACT_SEQUENTIAL,
    POSITIONS,
    STRATEGIES,
    Options,
    sampling_params,
)

INTRODUCTION = (
    "this is the built-in demonstration model, SmolLM2-135M-Instruct taught by this project: "
    f"{BUILTIN_QUALITY}"
)
BASELINE = "a model that was taught to fork is no baseline: {name} answers, taught without tags"
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed")
EXAMPLE = 'pasta run "Three ways to sleep better"'


def run(
    prompt: flags.Prompt = None,
    file: flags.File = None,
    model: flags.Model = None,
    dtype: flags.Dtype = None,
    device: flags.Device = None,
    strategy: Annotated[str, option("--strategy NAME", f"{', '.join(STRATEGIES)}.")] = "pasta",
    max_tokens: flags.MaxTokens = 1024,
    max_threads: flags.MaxThreads = None,
    temperature: flags.Temperature = None,
    repetition_penalty: flags.RepetitionPenalty = None,
    presence_penalty: flags.PresencePenalty = None,
    frequency_penalty: flags.FrequencyPenalty = None,
    top_p: flags.TopP = None,
    fork_bias: flags.ForkBias = None,
    think: flags.Think = None,
    seed: flags.Seed = 0,
    n: Annotated[int, option("--n -n N", "Number of answers.")] = 1,
    positions: Annotated[
        str | None, option("--positions STRATEGY", "predict or continue. Default: as trained.")
    ] = None,
    engine: flags.Engine = None,
    dialect: flags.Dialect = None,
    allow_inexact: flags.AllowInexact = False,
    json: flags.Json = False,
    trace: Annotated[
        Path | None, option("--trace FILE", "Write the trace to this file; pasta view shows it.")
    ] = None,
) -> None:
    """Answer a prompt with a model.

    In a terminal the threads are shown while they decode. Otherwise only the answer is printed.
    The sequential baseline of the built-in model is builtin-sequential; it answers the strategies
    that decode sequentially.
    """
    servers = require_engine(engine, dialect, allow_inexact=allow_inexact)
    require_one_of("--strategy", strategy, STRATEGIES)
    require_one_of("--positions", positions, POSITIONS)
    settings = checked(
        max_tokens=max_tokens,
        max_threads=max_threads,
        temperature=temperature,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        top_p=top_p,
        fork_bias=fork_bias,
        seed=seed,
        n=n,
    )
    if trace is not None and n > 1:
        raise UsageError("--trace writes the trace of one answer", hint="leave out --n")
    if trace is not None and not trace.absolute().parent.is_dir():
        raise UsageError(f"no folder {trace.parent} for the trace", hint="make it first")
    text = _prompt(prompt, file)
    is_baseline = servers is None and strategy in EXACT_SEQUENTIAL
    name = baseline_of(model or BUILTIN) if is_baseline else model
    loaded = load_model(name, servers, dtype=dtype, device=device)
    if name in (None, BUILTIN):
        terminal.say(INTRODUCTION)
    elif is_baseline and name != model:
        terminal.say(BASELINE.format(name=name))
    params = loaded.sampling_params(**settings)
    if defaults := [name for name in loaded.engine.loaded.sampling if name not in settings]:
        how = ", ".join(f"{name} {getattr(params, name):g}" for name in defaults)
        terminal.say(f"sampling of the model's generation_config.json: {how}")
    options: Options = {"strategy": strategy, "positions": positions, "think": think}
    answers = _answer(loaded, text, params, options)
    _print(answers, params, as_json=json)
    if trace is not None:
        terminal.write_text(trace, answers[0].trace.to_json())


def fill(
    prompt: flags.Prompt = None,
    file: flags.File = None,
    schema: Annotated[
        Path | None, option("--schema FILE.json", "The JSON schema of an object. [required]")
    ] = None,
    after: Annotated[
        list[str] | None,
        option("--after NAME=NAME[,NAME]", "Fields that a field waits for and sees; repeatable."),
    ] = None,
    model: flags.Model = None,
    dtype: flags.Dtype = None,
    device: flags.Device = None,
    max_tokens: flags.MaxTokens = 1024,
    temperature: flags.Temperature = None,
    repetition_penalty: flags.RepetitionPenalty = None,
    presence_penalty: flags.PresencePenalty = None,
    frequency_penalty: flags.FrequencyPenalty = None,
    seed: flags.Seed = 0,
    engine: flags.Engine = None,
    json: flags.Json = False,
) -> None:
    """Fill the fields of a schema at the same time, with any model.

    Each field is a thread that sees the prompt and its own key. The object is printed as JSON, and
    matches the schema.
    """
    servers = require_engine(engine)
    if schema is None:
        raise UsageError("there is no schema", hint="name a file: --schema FILE.json")
    settings = checked(
        max_tokens=max_tokens,
        temperature=temperature,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        seed=seed,
        max_blocks=MAX_FIELDS,
    )
    wanted, waits, text = _schema(schema), _waits(after or ()), _prompt(prompt, file)
    loaded = load_model(model, servers, dtype=dtype, device=device)
    with live_threads() as show:
        watch = lambda event: show([event])  # noqa: E731
        answer = loaded.fill(text, wanted, after=waits, watch=watch, **settings)
    _print_parts(answer, answer.text, as_json=json)


def ask(
    document: Annotated[Path, typer.Argument(metavar="DOCUMENT", help="A file, or - for stdin.")],
    questions: Annotated[Path, typer.Argument(metavar="QUESTIONS.txt", help="One a line.")],
    model: flags.Model = None,
    dtype: flags.Dtype = None,
    device: flags.Device = None,
    max_tokens: flags.MaxTokens = 1024,
    temperature: flags.Temperature = None,
    repetition_penalty: flags.RepetitionPenalty = None,
    presence_penalty: flags.PresencePenalty = None,
    frequency_penalty: flags.FrequencyPenalty = None,
    seed: flags.Seed = 0,
    engine: flags.Engine = None,
    json: flags.Json = False,
) -> None:
    """Answer many questions about one document at the same time.

    Each question is a thread that sees the document and nothing of the others.
    """
    servers = require_engine(engine)
    lines = [line.strip() for line in terminal.read_text(str(questions)).splitlines()]
    lines, text = [line for line in lines if line], _prompt(None, document)
    if not lines:
        raise UsageError(f"{questions} has no questions", hint="write one a line")
    settings = checked(
        max_tokens=max_tokens,
        temperature=temperature,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        seed=seed,
        max_blocks=MAX_FIELDS,
    )
    loaded = load_model(model, servers, dtype=dtype, device=device)
    with live_threads() as show:
        answer = loaded.ask(text, lines, watch=lambda event: show([event]), **settings)
    pairs = zip(lines, answer.data, strict=False)
    _print_parts(answer, "\n\n".join(f"{line}\n{reply}" for line, reply in pairs), as_json=json)


def checked(**settings: object) -> Options:
    """Drop the settings that were left out; a ``UsageError`` if another is out of its range."""
    kept = cast("Options", {name: value for name, value in settings.items() if value is not None})
    sampling_params(None, kept)
    return kept


def _schema(file: Path) -> dict[str, object]:
    try:
        schema = loads(terminal.read_text(str(file)), object_pairs_hook=_object)
    except ValueError as exc:
        raise InputError(f"{file} is no JSON: {exc}") from exc
    if not isinstance(schema, dict):
        raise InputError(f"{file} is no JSON schema: it must be an object")
    return schema


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    keys = [key for key, _ in pairs]
    if doubled := [key for key in keys if keys.count(key) > 1]:
        raise InputError(f"the key {doubled[0]!r} stands twice in an object of the schema")
    return dict(pairs)


def _waits(rules: Iterable[str]) -> dict[str, list[str]]:
    waits: dict[str, list[str]] = {}
    for rule in rules:
        name, _, others = rule.partition("=")
        if not (name and others):
            raise UsageError(f"--after cannot be {rule!r}", hint="for example --after total=items")
        waits.setdefault(name.strip(), []).extend(other.strip() for other in others.split(","))
    return waits


def _print_parts(answer: PartsAnswer, text: str, *, as_json: bool) -> None:
    if as_json:
        facts = {"unfinished": answer.unfinished, "trace": loads(answer.trace.to_json())}
        terminal.print_json({"data": answer.data, "text": answer.text, **facts})
    else:
        terminal.print_answer(text)
    print_figures(answer.trace, with_picture=not as_json)
    if answer.unfinished:
        raise PastaError(
            f"a limit cut {', '.join(answer.unfinished)}; the other parts are complete",
            hint="raise --max-tokens",
        )


def load_model(
    model: str | None,
    servers: Servers | None = None,
    *,
    dtype: str | None,
    device: str | None,
    pool_tokens: int | None = None,
    cache_memory: str | None = None,
    shares_prefixes: bool = False,
) -> Pasta:
    """Load a model, or connect to servers that hold it; they refuse the flags of a local one."""
    with terminal.status(f"loading {model or BUILTIN}"):
        if servers is None:
            return Pasta.from_pretrained(
                model or BUILTIN,
                dtype=dtype or "auto",
                device=device,
                pool_tokens=pool_tokens,
                cache_memory=cache_memory,
                shares_prefixes=shares_prefixes,
            )
        if model is None:
            hint = "name the folder that the servers serve"
            raise UsageError("--engine needs --model", hint=hint)
        local = {"--dtype": dtype, "--device": device}
        if refused := [flag for flag, value in local.items() if value]:
            hint = "the servers decide this when they start"
            raise UsageError(f"{', '.join(refused)} cannot be used with --engine", hint=hint)
        return servers.holding(model)


def _prompt(prompt: str | None, file: Path | None) -> str:
    if prompt is not None and file is not None:
        raise UsageError("a prompt and --file were given", hint="give one of the two")
    if prompt is None and file is None and sys.stdin.isatty():
        raise UsageError("there is no prompt", hint=EXAMPLE)
    text = prompt if prompt is not None else terminal.read_text(str(file or terminal.STDIN))
    if not text.strip():
        raise UsageError("the prompt is empty", hint=EXAMPLE)
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise InputError("the prompt is not UTF-8", hint="save it as UTF-8 and use --file")
    return text


def _answer(model: Pasta, prompt: str, params: SamplingParams, options: Options) -> list[Answer]:
    if params.n > 1:
        return model.samples(prompt, params, **options)
    answers: list[Answer] = []
    with live_threads() as show:
        for event in model.stream(prompt, params, **options):
            show([event])
            if isinstance(event, Finished):
                answers.append(event.answer)
    return answers


def _print(answers: list[Answer], params: SamplingParams, *, as_json: bool) -> None:
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
        terminal.print_answer("\n\n".join(answer.text for answer in answers))
    for answer in answers:
        print_figures(answer.trace, with_picture=not as_json)
