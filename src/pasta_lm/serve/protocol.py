"""The requests of OpenAI's API, and their checks.

Fields that change nothing here are ignored, as other servers do; fields that would change the
answer and are not supported are refused by name. Tools that the model is free not to call are not
shown to it, and the reply says so: some clients offer theirs in every request.
"""

from __future__ import annotations

import secrets
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from pasta_lm.engines.request import SamplingParams
from pasta_lm.serve.api_error import ApiError, bad_request
from pasta_lm.serve.backends import Prompt, TokenIds
from pasta_lm.serve.settings import Bounds

LENIENT = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)
STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

NEUTRAL: dict[str, tuple[object, ...]] = {
    "add_generation_prompt": (True,),
    "allowed_token_ids": ([],),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "grammar": ("",),
    "guided_choice": ([],),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "logits_processors": ([],),
    "min_p": (0,),
    "min_tokens": (0,),
    "mirostat": (0,),
    "modalities": (["text"],),
    "presence_penalty": (0,),
    "prompt_logprobs": (),
    "repeat_penalty": (1,),
    "response_format": ({"type": "text"},),
    "skip_special_tokens": (True,),
    "stop_token_ids": ([],),
    "structured_outputs": (),
    "suffix": ("",),
    "tfs_z": (1,),
    "tool_choice": ("none", "auto"),
    "top_a": (0,),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "web_search_options": (),
}
"""Fields that are not supported, with the values that ask for nothing; null always does."""

NOT_SHOWN = ("functions", "tools")
"""Fields that are dropped, and named in the reply: the model is free not to use them."""

MAX_TOP_LOGPROBS = 20  # as OpenAI's


class TextPart(BaseModel):
    """A part of a message: text is the only kind."""

    model_config = LENIENT
    type: Literal["text"]
    text: str


class Message(BaseModel):
    """One turn of a conversation."""

    model_config = LENIENT
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)] | None = None

    @property
    def text(self) -> str:
        """Return the message's text; what looks like a tag in it is text."""
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        return "".join(part.text for part in self.content)


# A list ends at its first wrong element: a long list of wrong ones would cost minutes.
Messages = Annotated[list[Message], Field(min_length=1, fail_fast=True)]
Strings = Annotated[list[str], Field(fail_fast=True)]
Ids = Annotated[list[int], Field(fail_fast=True)]


class StreamOptions(BaseModel):
    """OpenAI's options of a stream."""

    model_config = LENIENT
    include_usage: bool | None = None


class PastaOptions(BaseModel):
    """Our own options, in one object; an unknown one is an error."""

    model_config = STRICT
    strategy: str | None = None
    positions: str | None = None
    max_threads: Annotated[int, Field(ge=1)] | None = None
    max_tokens_per_thread: Annotated[int, Field(ge=3)] | None = None
    stream: Literal["text", "events"] = "text"
    tags: Literal["strip", "keep"] = "strip"
    trace: bool = False


class AnswerRequest(BaseModel):
    """The fields of both kinds of request."""

    model_config = LENIENT
    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    stop: str | Strings | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    pasta: PastaOptions | None = None

    @property
    def options(self) -> PastaOptions:
        """Return our own options."""
        return self.pasta or PastaOptions()

    @property
    def includes_usage(self) -> bool:
        """Return whether a stream ends with its usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def traces(self) -> bool:
        """Return whether the stream carries the trace while it grows."""
        return bool(self.stream) and self.options.stream == "events" and self.options.trace

    @property
    def not_shown(self) -> list[str]:
        """Return the fields of the request that the model is not shown."""
        extra = self.model_extra or {}
        return [name for name in NOT_SHOWN if extra.get(name)]

    def largest_tokens(self) -> int | None:
        """Return how many tokens the client wants at most."""
        return self.max_tokens

    def num_logprobs(self) -> int | None:
        """Return how many candidates to report beside each token; None: no log-probabilities."""
        return None

    def params(self, bounds: Bounds) -> SamplingParams:
        """Return the sampling parameters, tokens and threads lowered to the bounds.

        Raises:
            ApiError: a value is refused, or something is asked that is not supported.
        """
        self._check(bounds)
        tokens = self.largest_tokens() or bounds.default_tokens
        options = self.options
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return SamplingParams(
            max_tokens=min(tokens, bounds.tokens),
            temperature=0.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=self.top_k if self.top_k and self.top_k > 0 else None,
            seed=secrets.randbits(31) if self.seed is None else self.seed,
            n=self.n or 1,
            stop=tuple(stops),
            repetition_penalty=self.repetition_penalty or 1.0,
            max_threads=min(options.max_threads or bounds.threads, bounds.threads),
            max_blocks=bounds.blocks,
            ignore_eos=bool(self.ignore_eos),
            logprobs=self.num_logprobs(),
            max_tokens_per_thread=min(
                options.max_tokens_per_thread or bounds.tokens_per_thread, bounds.tokens_per_thread
            ),
        )

    def _check(self, bounds: Bounds) -> None:
        extra = self.model_extra or {}
        for name in extra:
            if name in NEUTRAL and extra[name] is not None and extra[name] not in NEUTRAL[name]:
                raise bad_request(f"{name} is not supported", name, "unsupported")
        if (self.n or 1) > bounds.n:
            raise bad_request(f"n is {self.n}, but at most {bounds.n} samples are given", "n")
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if len(stops) > bounds.stops or max(map(len, stops), default=0) > bounds.stop_characters:
            message = f"at most {bounds.stops} stop strings of {bounds.stop_characters} characters"
            raise bad_request(message, "stop")
        if not all(stops):
            raise bad_request("a stop string is empty", "stop")


class ChatRequest(AnswerRequest):
    """A conversation to be continued by the model."""

    messages: Messages
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None

    def num_logprobs(self) -> int | None:
        """Return how many candidates to report beside each token.

        Raises:
            ApiError: candidates without ``logprobs``.
        """
        if self.top_logprobs and not self.logprobs:
            raise bad_request("top_logprobs needs logprobs: true", "top_logprobs")
        return (self.top_logprobs or 0) if self.logprobs else None

    def largest_tokens(self) -> int | None:
        """Return how many tokens the client wants at most; the newer name counts first."""
        return self.max_completion_tokens or self.max_tokens

    def prompts(self, bounds: Bounds, strategy: str) -> list[Prompt]:
        """Return the messages for the chat template: one prompt."""
        if len(self.messages) > bounds.messages:
            num = len(self.messages)
            raise bad_request(f"{num} messages, but at most {bounds.messages}", "messages")
        roles = {"developer": "system"}
        turns = [
            {"role": roles.get(message.role, message.role), "content": message.text}
            for message in self.messages
        ]
        return [Prompt(turns, self.options.strategy or strategy, self.options.positions)]


class CompletionRequest(AnswerRequest):
    """Texts, or prompts of token ids, to be continued as they stand."""

    prompt: str | Strings | Ids | Annotated[list[Ids], Field(fail_fast=True)]
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None

    def num_logprobs(self) -> int | None:
        """Return how many candidates to report beside each token."""
        return self.logprobs

    def prompts(self, bounds: Bounds, strategy: str) -> list[Prompt]:
        """Return the prompts, never read by the chat template.

        Raises:
            ApiError: there are none, or too many.
        """
        rows = _rows(self.prompt)
        if not 0 < len(rows) <= bounds.prompts:
            message = f"{len(rows)} prompts, but there must be from 1 to {bounds.prompts}"
            raise bad_request(message, "prompt")
        contents = [row if isinstance(row, str) else TokenIds(row) for row in rows]
        strategy = self.options.strategy or strategy
        return [Prompt(content, strategy, self.options.positions) for content in contents]


AnyRequest = ChatRequest | CompletionRequest


def _rows(prompt: str | list[str] | list[int] | list[list[int]]) -> list[str | list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    ids = [item for item in prompt if isinstance(item, int)]
    return [ids] if ids else [item for item in prompt if not isinstance(item, int)]


def check_model(name: str | None, served: str) -> None:
    """Refuse a request for another model.

    Raises:
        ApiError: 404, with the name of the model that is served.
    """
    if name is not None and name != served:
        message = f"there is no model {name[:200]!r} here; this server has {served!r}"
        raise ApiError(404, message, param="model", code="model_not_found")
