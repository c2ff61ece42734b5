"""From a prompt, sampling parameters and the name of a strategy to the request of an engine.

Speculative strategies check several guessed tokens of each thread in a pass; their tokens are those
of the strategy without guesses (``engines/guesses.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, TypedDict

from pasta_lm.engines import ModelFacts
from pasta_lm.engines.guesses import PromptLookup
from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.errors import RequestError, UsageError
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.language.document import Document
from pasta_lm.models.encoded import EncodedDocument
from pasta_lm.models.thinking import kwargs_at_once, think_kwargs
from pasta_lm.strategies import (
    APAR,
    APAR_POSITIONS,
    PASTA,
    SEQUENTIAL,
    Prompt,
    apar_request,
    sequential_request,
)
from pasta_lm.strategies import skeleton_of_thought as sot

if TYPE_CHECKING:
    from pasta_lm.models.vocabulary import Vocabulary

LOOKUP, PASTA_LOOKUP = "prompt-lookup", "pasta-prompt-lookup"
EXACT_SEQUENTIAL: Final = (SEQUENTIAL, LOOKUP)  # their tokens are the sequential ones
STRATEGIES: Final = (PASTA, SEQUENTIAL, APAR, sot.NAME, LOOKUP, PASTA_LOOKUP)
POSITIONS = [item.value for item in PositionStrategy if item is not PositionStrategy.ORACLE]
"""Without 'oracle', which needs the true length of every block: only a given answer has it."""
Positions = PositionStrategy | str | None  # of main after a promise; None: as the model was trained

PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")

NO_TAG_PIECES = (
    "this model was not taught PASTA-LANG (it has no tag pieces): it answers sequentially"
)
NO_CHAT_TEMPLATE = "this model has no chat template: it continues the prompt as plain text"
OTHER_STRATEGY = "this model was not taught {strategy}: it answers sequentially"
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


def check_prompt(prompt: object) -> None:
    """Refuse a value that is no prompt (``UsageError``), and an empty one (``RequestError``)."""
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
    """Return parameters with the changes that keywords name; all are checked."""
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


def default_sampling(sampling: Mapping[str, float], *, copies: bool) -> dict[str, float]:
    """Return a model's own settings; its penalties are for free text, not for what copies."""
    return {name: x for name, x in sampling.items() if not (copies and name in PENALTIES)}


def bounded(request: Request, num_given: int = 0) -> Request:
    """Limit a request to its forced tokens, their end, and the tokens that its points are given."""
    assert request.forced is not None
    # The engine reserves cache for as many tokens as the limit allows, so no more are allowed.
    num_tokens = request.forced.num_tokens + 1 + num_given
    num_blocks = len(request.forced.blocks)
    params = replace(request.params, max_tokens=num_tokens, max_blocks=num_blocks)
    return replace(request, params=params)


def forced(request: Request, document: Document, vocabulary: Vocabulary) -> Request:
    """Return the request of any strategy, decoding a given answer instead of the model's own.

    A request that forks no threads decodes the text, its tags stripped. A block without a promised
    length gets its own.

    Raises:
        VocabularyError: APAR cannot express a sync of the answer.
        ValueError: Skeleton-of-Thought cannot express what stands outside its blocks.
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


@dataclass(frozen=True, slots=True)
class Requests:
    """Makes the requests of one model."""

    loaded: ModelFacts
    note: Callable[[str], None]
    """Called with what a user should know of a request."""

    @property
    def taught(self) -> str | None:
        """Return the strategy that the model was trained for; None: it has no tag pieces."""
        return self.loaded.trained_strategy if self.loaded.vocabulary.has_pieces else None

    def supports(self, strategy: str) -> bool:
        """Return whether the model was trained for a strategy, if it needs training."""
        if strategy in (PASTA, PASTA_LOOKUP):
            return self.taught == PASTA
        return strategy != APAR or self.taught == APAR

    def request(
        self,
        prompt: Prompt,
        params: SamplingParams,
        strategy: str,
        positions: Positions,
        *,
        continues: bool,
        chat_template_kwargs: Mapping[str, object] | None = None,
    ) -> Request:
        if strategy not in STRATEGIES:
            names = ", ".join(STRATEGIES)
            raise UsageError(f"unknown strategy {strategy!r}", hint=f"one of {names}")
        if continues and strategy == sot.NAME:
            raise UsageError(f"strategy {strategy!r} answers a message, it continues no text")
        prompt = self.message(prompt, continues)
        if strategy in (sot.NAME, APAR) and positions not in (None, APAR_POSITIONS):
            raise UsageError(
                f"strategy {strategy!r} leaves no gaps, so it has no positions {str(positions)!r}",
                hint="leave them out",
            )
        if strategy == sot.NAME:  # wraps the prompt, then encodes it
            wording = sot.FINETUNED if self.loaded.trained_strategy == sot.NAME else sot.PROMPTED
            kwargs = kwargs_at_once(chat_template_kwargs, "answers by points")
            return sot.request(prompt, self.loaded.vocabulary, params, kwargs, wording=wording)
        vocabulary = self.loaded.vocabulary
        has_schema = params.structured_outputs is not None  # then it thinks only if told to
        thinks = False if has_schema else vocabulary.thinks
        kwargs = {**think_kwargs(thinks), **(chat_template_kwargs or {})}
        ids = vocabulary.encode_prompt(prompt, continues=continues, chat_template_kwargs=kwargs)
        thinking = None if isinstance(prompt, str) else vocabulary.thinking_after(ids)
        if continues and not isinstance(prompt, str):
            thinking = vocabulary.thinking_within(str(prompt[-1].get("content") or ""), ids)
        elif thinking is not None:
            self._check_is_off(prompt, chat_template_kwargs or {}, ids)
        if has_schema and thinking is not None and not thinking.is_open:
            # The first token is either of the thought or of the schema.
            is_told = True in (kwargs.get("enable_thinking"), kwargs.get("thinking"))
            ids = vocabulary.with_thought(ids) if is_told else ids
            thinking = vocabulary.thinking_after(ids) if is_told else None
        return replace(self._request(ids, params, strategy, positions), thinking=thinking)

    def _check_is_off(self, prompt: Prompt, kwargs: Mapping[str, object], ids: list[int]) -> None:
        """Refuse to switch off a thought that the chat template leaves to the model."""
        is_off = False in (kwargs.get("enable_thinking"), kwargs.get("thinking"))
        on = {**kwargs, **think_kwargs(True)}
        encode = self.loaded.vocabulary.encode_prompt
        if is_off and ids == encode(prompt, chat_template_kwargs=on):
            problem = "the chat template of this model cannot switch its thought off"
            hint = "leave out enable_thinking: false (or reasoning_effort: none)"
            raise RequestError(problem, hint=hint)

    def _request(
        self, ids: Sequence[int], params: SamplingParams, strategy: str, positions: Positions
    ) -> Request:
        if strategy == LOOKUP:
            return sequential_request(ids, params, PromptLookup(), strategy)
        if not self.supports(strategy):  # tags that it was not trained on would fork at random
            self.note(OTHER_STRATEGY.format(strategy=strategy) if self.taught else NO_TAG_PIECES)
            strategy = SEQUENTIAL
        has_schema = params.structured_outputs is not None  # it holds for one thread
        if strategy == SEQUENTIAL or (has_schema and strategy == PASTA):
            return sequential_request(ids, params)
        if strategy == APAR:
            return apar_request(ids, params)
        chosen = self._positions(positions)
        join = self.loaded.join_with(chosen)
        request = Request(prompt=ids, params=params, positions=chosen, join=join)
        if strategy == PASTA_LOOKUP:
            return replace(request, guesser=PromptLookup(), strategy=strategy)
        return request

    def replay(
        self,
        prompt: Prompt,
        document: Document,
        positions: Positions,
        *,
        max_threads: int | None,
        continues: bool,
    ) -> Request:
        """Return the request that decodes a given answer; see ``Pasta.replay_request``."""
        vocabulary = self.loaded.vocabulary
        ids = vocabulary.encode_prompt(self.message(prompt, continues), continues=continues)
        if not (document.blocks or document.num_syncs):
            return forced(sequential_request(ids, SamplingParams()), document, vocabulary)
        if not vocabulary.has_pieces:
            raise RequestError(
                f"{self.loaded.name} has no tag pieces, so it can replay no answer with tags",
                hint="remove the tags, or use a model that was taught PASTA-LANG",
            )
        is_oracle = positions == PositionStrategy.ORACLE
        chosen = PositionStrategy.ORACLE if is_oracle else self._positions(positions)
        params = SamplingParams(max_threads=max_threads)
        join = self.loaded.join_with(chosen)
        request = Request(prompt=ids, params=params, positions=chosen, join=join)
        return forced(request, document, vocabulary)

    def message(self, prompt: Prompt, continues: bool = False) -> Prompt:
        """Return the prompt for the chat template; a text if there is none or it is continued."""
        check_prompt(prompt)
        if continues and not isinstance(prompt, str) and prompt[-1].get("role") != "assistant":
            hint = "end the messages with the answer so far, with the role assistant"
            raise RequestError("the last message is no answer to be continued", hint=hint)
        if not self.loaded.vocabulary.has_chat_template:
            self.note(NO_CHAT_TEMPLATE)
        elif isinstance(prompt, str) and not continues:
            return [{"role": "user", "content": prompt}]
        return prompt

    def _positions(self, chosen: Positions) -> PositionStrategy:
        if chosen is None:
            return self.loaded.positions
        if chosen not in POSITIONS:
            reason = " (replay and training only)" if chosen == PositionStrategy.ORACLE else ""
            raise UsageError(
                f"positions {chosen!r} cannot be used here{reason}",
                hint=f"one of {', '.join(POSITIONS)}",
            )
        return PositionStrategy(chosen)
