"""The values that the Python interface takes, checked: prompts, batches, keywords."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import Literal, TypedDict

from pasta_lm.engines.request import SamplingParams
from pasta_lm.errors import RequestError, UsageError
from pasta_lm.interpreter.positions import PositionStrategy

Prompt = str | Sequence[Mapping[str, str]]
"""A text is the user's message; messages have ``role`` and ``content``."""
Batch = list[str] | list[Sequence[Mapping[str, str]]]
Positions = PositionStrategy | str | None  # of main after a promise; None: as the model was trained

ROLES = ("system", "developer", "user", "assistant", "tool")
CALL = 'generate("Name three rivers.", max_tokens=100)'


class Options(TypedDict, total=False):
    """Keywords of the calls that answer: the strategy, and the fields of ``SamplingParams``."""

    strategy: str
    positions: Positions
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int | None
    sampled: Literal["all", "structure"]
    seed: int | None
    n: int
    stop: tuple[str, ...]
    repetition_penalty: float
    max_threads: int | None
    max_blocks: int
    max_tokens_per_thread: int | None
    ignore_eos: bool
    mask: bool
    logprobs: int | None


def prompts_of(prompt: Prompt | Batch) -> list[Prompt] | None:
    """Return the prompts of a list of prompts; None for one prompt."""
    if not isinstance(prompt, list) or any(isinstance(part, Mapping) for part in prompt):
        return None
    return list(prompt)


def check_prompt(prompt: object) -> None:
    """Refuse a value that is no prompt, and an empty prompt.

    Raises:
        UsageError: it is neither a text nor messages.
        RequestError: it has no words.
    """
    if isinstance(prompt, str):
        contents: list[object] = [prompt]
    elif isinstance(prompt, Sequence) and all(isinstance(part, Mapping) for part in prompt):
        contents = [message.get("content") for message in prompt]
        for role in (message.get("role") for message in prompt):
            if role not in ROLES:
                hint = f"one of {', '.join(ROLES)}"
                raise UsageError(f"a message has the role {role!r}", hint=hint)
    else:
        kind = type(prompt).__name__
        raise UsageError(f"a prompt is a text or a list of messages, not {kind}", hint=CALL)
    if not any(str(content or "").strip() for content in contents):
        raise RequestError("the prompt is empty", hint="give it at least one word")


def sampling_params(params: object, keywords: Mapping[str, object]) -> SamplingParams:
    """Return parameters with the changes that keywords name.

    Raises:
        UsageError: another type, an unknown keyword, or a value without a meaning.
    """
    params = SamplingParams() if params is None else params
    if not isinstance(params, SamplingParams):
        kind = type(params).__name__
        raise UsageError(f"params are SamplingParams, not {kind}", hint=CALL)
    names = [field.name for field in fields(SamplingParams)]
    for name in keywords:
        if name not in names:
            near = get_close_matches(name, names, 1) or names
            hint = f"did you mean {near[0]}?" if len(near) == 1 else f"one of {', '.join(names)}"
            raise UsageError(f"there is no parameter {name!r}", hint=hint)
    try:
        return replace(params, **keywords)  # type: ignore[arg-type]  # the class checks them
    except TypeError as exc:
        raise UsageError(f"a sampling parameter has a wrong type: {exc}", hint=CALL) from exc
