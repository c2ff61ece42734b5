"""From a prompt, sampling parameters and the name of a strategy to the request of an engine.

Speculative strategies check several guessed tokens of each thread in a pass; their tokens are those
of the strategy without guesses (``engines/guesses.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, TypedDict

from pasta_lm.engines import ModelFacts
from pasta_lm.engines.guesses import prompt_lookup
from pasta_lm.engines.request import Guesser, Request, SamplingParams, StructuredOutputs
from pasta_lm.errors import RequestError, UsageError
from pasta_lm.interpreter.positions import Join, PositionStrategy
from pasta_lm.language.document import Document
from pasta_lm.language.parser import Form
from pasta_lm.models.encoded import EncodedDocument
from pasta_lm.models.thinking import Thinking, think_kwargs
from pasta_lm.strategies import APAR, APAR_POSITIONS, PASTA, SEQUENTIAL, Prompt
from pasta_lm.strategies import skeleton_of_thought as sot

if TYPE_CHECKING:
    from pasta_lm.models.vocabulary import Vocabulary

LOOKUP, PASTA_LOOKUP = "prompt-lookup", "pasta-prompt-lookup"
EXACT_SEQUENTIAL: Final = (SEQUENTIAL, LOOKUP)  # their tokens are the sequential ones
STRATEGIES: Final = (PASTA, SEQUENTIAL, APAR, sot.NAME, LOOKUP, PASTA_LOOKUP)
POSITIONS = [item.value for item in PositionStrategy if item is not PositionStrategy.ORACLE]
"""Without 'oracle', which needs the true length of every block: only a given answer has it."""
Positions = PositionStrategy | str | None
"""What main's positions are after a promise; None: as the model was trained."""

PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")

OTHER_STRATEGY = "this model was not taught {strategy}: it answers sequentially"
NO_TAG_PIECES = OTHER_STRATEGY.format(strategy="PASTA-LANG (it has no tag pieces)")
NO_TAG_PIECES += "; pasta fill and pasta ask work with it, and pasta teach teaches it"
NO_CHAT_TEMPLATE = "this model has no chat template: it continues the prompt as plain text"
ROLES = ("system", "developer", "user", "assistant", "tool")
CALL = 'generate("Name three rivers.", max_tokens=100)'


class Options(TypedDict, total=False):
    """Keywords of the calls that answer: the strategy, and the fields of ``SamplingParams``."""

    strategy: str
    positions: Positions
    think: bool | None
    chat_template_kwargs: Mapping[str, object] | None
    max_tokens: int
    max_thinking_tokens: int | None
    temperature: float
    top_p: float
    top_k: int | None
    min_p: float
    seed: int | None
    n: int
    stop: tuple[str, ...]
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    fork_bias: float | None
    max_threads: int | None
    max_blocks: int
    max_tokens_per_thread: int | None
    ignore_eos: bool
    mask: bool
    logprobs: int | None
    structured_outputs: StructuredOutputs | None


def check_prompt(prompt: object) -> None:
    if isinstance(prompt, str):
        contents: list[object] = [prompt]
    elif isinstance(prompt, Sequence) and all(isinstance(turn, Mapping) for turn in prompt):
        contents = [turn.get("content") for turn in prompt]
        if wrong := [role for turn in prompt if (role := turn.get("role")) not in ROLES]:
            hint = f"one of {', '.join(ROLES)}"
            raise UsageError(f"a message has the role {wrong[0]!r}", hint=hint)
    else:
        kind = type(prompt).__name__
        raise UsageError(f"a prompt is a text or a list of messages, not {kind}", hint=CALL)
    if not any(str(content or "").strip() for content in contents):
        raise RequestError("the prompt is empty", hint="give it at least one word")


def sampling_params(params: object, keywords: Mapping[str, object]) -> SamplingParams:
    params = SamplingParams() if params is None else params
    if not isinstance(params, SamplingParams):
        kind = type(params).__name__
        raise UsageError(f"params are SamplingParams, not {kind}", hint=CALL)
    names = [field.name for field in fields(SamplingParams)]
    if unknown := [name for name in keywords if name not in names]:
        near = get_close_matches(unknown[0], names, 1)
        hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(names)}"
        raise UsageError(f"there is no parameter {unknown[0]!r}", hint=hint)
    try:
        return replace(params, **keywords)  # type: ignore[arg-type]  # the class checks them
    except TypeError as exc:
        raise UsageError(f"a sampling parameter has a wrong type: {exc}", hint=CALL) from exc


def default_sampling(sampling: Mapping[str, float], *, copies: bool) -> dict[str, float]:
    """Return a model's settings; its penalties are for free text, not for what copies."""
    return {name: x for name, x in sampling.items() if not (copies and name in PENALTIES)}


def bounded(request: Request, num_given: int = 0) -> Request:
    assert request.forced is not None
    # The engine reserves cache for as many tokens as the limit allows, so no more are allowed.
    num_tokens = request.forced.num_tokens + 1 + num_given
    params = replace(request.params, max_tokens=num_tokens, max_blocks=len(request.forced.blocks))
    return replace(request, params=params)


def forced(request: Request, document: Document, vocabulary: Vocabulary) -> Request:
    """Return the request of any strategy, decoding a given answer instead of the model's own.

    A request that forks no threads decodes the text, its tags stripped. A block without a promised
    length promises its true one. A ``VocabularyError`` for a sync in APAR, a ``ValueError`` for
    what stands outside the blocks of Skeleton-of-Thought.
    """
    encode, num_given = vocabulary.encode_text, 0
    if request.expansion is not None:
        blocks = sot.blocks_of(document)
        skeleton = sot.skeleton_of(blocks)
        texts = tuple(tuple(encode(block.plain_text)) for block in blocks)
        encoded = EncodedDocument(main=tuple(encode(skeleton)), blocks=texts)
        num_given = sum(len(start.prefix) for start in request.expansion.starts(skeleton))
    elif request.forks:
        encoded = vocabulary.encode_document(document, request.form)
    else:  # as one text: stretches between tags, encoded alone, can have more tokens together
        encoded = EncodedDocument(main=tuple(encode(document.plain_text)), blocks=())
    return bounded(replace(request, forced=encoded), num_given)


def template_kwargs(
    think: bool | None, variables: Mapping[str, object] | None
) -> dict[str, object]:
    """Return the variables of a chat template; a ``UsageError`` if ``think`` contradicts them."""
    kwargs = {**think_kwargs(think), **(variables or {})}
    if {**kwargs, **think_kwargs(think)} != kwargs:
        problem = "think and chat_template_kwargs contradict each other"
        raise UsageError(problem, hint="leave one of them out")
    return kwargs


def replay_request(
    ids: Sequence[int], document: Document, loaded: ModelFacts, positions: PositionStrategy,
    max_threads: int | None = None,
) -> Request:  # fmt: skip
    request = sequential_request(ids, SamplingParams())
    if document.blocks or document.num_syncs:
        params, join = SamplingParams(max_threads=max_threads), loaded.join_with(positions)
        request = Request(prompt=ids, params=params, positions=positions, join=join)
    return forced(request, document, loaded.vocabulary)


def check_strategy(strategy: str, positions: Positions, *, continues: bool) -> None:
    if strategy not in STRATEGIES:
        raise UsageError(f"unknown strategy {strategy!r}", hint=f"one of {', '.join(STRATEGIES)}")
    if continues and strategy == sot.NAME:
        raise UsageError(f"strategy {strategy!r} answers a message, it continues no text")
    if strategy in (sot.NAME, APAR) and positions not in (None, APAR_POSITIONS):
        problem = f"strategy {strategy!r} leaves no gaps, so it has no positions {str(positions)!r}"
        raise UsageError(problem, hint="leave them out")


def chosen_positions(positions: Positions, loaded: ModelFacts) -> PositionStrategy:
    if positions is None:
        return loaded.positions
    if positions not in POSITIONS:
        where = " (replay and training only)" if positions == PositionStrategy.ORACLE else ""
        problem = f"positions {positions!r} cannot be used here{where}"
        raise UsageError(problem, hint=f"one of {', '.join(POSITIONS)}")
    return PositionStrategy(positions)


def request_of(
    ids: Sequence[int], params: SamplingParams, strategy: str, positions: PositionStrategy,
    join: Join,
) -> Request:  # fmt: skip
    """Return the request of any strategy but Skeleton-of-Thought, which encodes more prompts."""
    guesser = prompt_lookup if strategy in (LOOKUP, PASTA_LOOKUP) else None
    if strategy == PASTA and params.structured_outputs is not None:  # a schema holds for one thread
        strategy = SEQUENTIAL
    if strategy in EXACT_SEQUENTIAL:
        return sequential_request(ids, params, guesser, strategy)
    if strategy == APAR:
        return apar_request(ids, params)
    return Request(
        prompt=ids, params=params, positions=positions, join=join, guesser=guesser,
        strategy=strategy,
    )  # fmt: skip


def sequential_request(
    prompt: Sequence[int], params: SamplingParams, guesser: Guesser | None = None,
    strategy: str = SEQUENTIAL,
) -> Request:  # fmt: skip
    """Return the request of one thread, in which no tag can be sampled."""
    return Request(prompt=prompt, params=params, forks=False, guesser=guesser, strategy=strategy)


def apar_request(prompt: Sequence[int], params: SamplingParams) -> Request:
    """Return the request of APAR: at a fork the parent goes on, the child writes its details.

    A fork has no topic and no promised length, and no thread ever joins another. It is written with
    PASTA's opening promise piece and read by another grammar. Source: Liu et al. 2024,
    arXiv 2401.06761, section 3.
    """
    return Request(
        prompt=prompt, params=params, positions=APAR_POSITIONS, form=Form.FORKED, strategy=APAR
    )


def encoded(
    prompt: Prompt, vocabulary: Vocabulary, chat_template_kwargs: Mapping[str, object], *,
    continues: bool, has_schema: bool,
) -> tuple[list[int], Thinking | None]:  # fmt: skip
    thinks = False if has_schema else vocabulary.thinks  # beside a schema only if it is told to
    kwargs = {**think_kwargs(thinks), **chat_template_kwargs}
    ids = vocabulary.encode_prompt(prompt, continues=continues, chat_template_kwargs=kwargs)
    if isinstance(prompt, str):
        return ids, None
    if continues:
        thinking = vocabulary.thinking_within(str(prompt[-1].get("content") or ""), ids)
    else:
        if (thinking := vocabulary.thinking_after(ids)) is not None:
            _check_is_off(prompt, vocabulary, chat_template_kwargs, ids)
    if has_schema and thinking is not None and not thinking.is_open:
        # The first token is either of the thought or of the schema.
        if True not in (kwargs.get("enable_thinking"), kwargs.get("thinking")):
            return ids, None
        ids = vocabulary.with_thought(ids)
        thinking = vocabulary.thinking_after(ids)
    return ids, thinking


def _check_is_off(
    prompt: Prompt, vocabulary: Vocabulary, kwargs: Mapping[str, object], ids: list[int]
) -> None:
    """Refuse to switch off a thought that the chat template leaves to the model."""
    is_off = False in (kwargs.get("enable_thinking"), kwargs.get("thinking"))
    on = {**kwargs, **think_kwargs(True)}
    if is_off and ids == vocabulary.encode_prompt(prompt, chat_template_kwargs=on):
        problem = "the chat template of this model cannot switch its thought off"
        hint = "leave out enable_thinking: false (or reasoning_effort: none)"
        raise RequestError(problem, hint=hint)
