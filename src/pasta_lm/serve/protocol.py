"""The requests and errors of OpenAI's API, and the requests of written answers.

Tools that the model is free to call are dropped, and the reply says so, where its chat template
knows none: some clients offer theirs with every request.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Literal, cast

from pydantic import Field

from pasta_lm.engines.request import SamplingParams, StructuredOutputs
from pasta_lm.models.thinking import think_kwargs
from pasta_lm.parts import declared as parts
from pasta_lm.serve import Bounds, fields, tool_calls
from pasta_lm.serve.errors import Json, bad_request
from pasta_lm.serve.tool_calls import CallReader, ClientPrompt, Few, TokenIds, Tool, ToolTemplate
from pasta_lm.strategies.requests import default_sampling

SAMPLING = {
    *("temperature", "top_p", "top_k", "min_p", "n", "ignore_eos", "max_thinking_tokens"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
}
"""Fields that are sampling parameters as they stand; null is the default."""

MAX_TOP_LOGPROBS = 20  # as OpenAI's

Limit = Annotated[int, Field(ge=-1)] | None  # -1: as many as the server gives
Messages = Annotated[list[tool_calls.Message], Field(min_length=1), Few]
Ids = Annotated[list[int], Field(fail_fast=True)]
TokenKey = Annotated[str, Field(pattern="^[0-9]{1,9}$")]  # JSON has no other keys


class AnswerRequest(fields.Fields):
    """The fields of both kinds of request."""

    owner = "request"
    model: str | None = None
    max_tokens: Limit = None
    max_completion_tokens: Limit = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: Annotated[dict[TokenKey, fields.Bias] | None, fields.FewKeys] = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    n: fields.Positive | None = None
    stop: str | fields.Strings | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: fields.StreamOptions | None = None
    response_format: fields.ResponseFormat | None = None
    structured_outputs: fields.StructuredFields | None = None
    pasta: Annotated[fields.PastaOptions | None, fields.FewKeys] = None

    @property
    def options(self) -> fields.PastaOptions:
        return self.pasta or fields.PastaOptions()

    @property
    def structure(self) -> StructuredOutputs | None:
        """Return the form that the answer must match; an ``ApiError`` if there are two."""
        form, outputs = self.response_format, self.structured_outputs
        if form is None or form.type == "text":
            return None if outputs is None else outputs.form
        if outputs is not None:
            message = "structured_outputs and response_format are two ways to say the same"
            raise bad_request(message, "structured_outputs")
        json = form.json_schema.schema_ if form.json_schema else fields.ANY_OBJECT
        return StructuredOutputs(json=json)

    @property
    def schema_of_parts(self) -> Mapping[str, object] | None:
        """Return the schema whose fields are parts, if they are; an ``ApiError`` without one."""
        options = self.options
        if not options.parts:
            for name in ("after", "spans", "confidence"):
                if getattr(options, name):
                    raise bad_request(f"{name} is for parts: add parts: true", f"pasta.{name}")
            return None
        if options.strategy or options.positions:
            raise bad_request("parts have no other strategy, and no positions", "pasta.parts")
        if options.tags == "keep" or self.offered:
            message = "parts are plain JSON: they keep no tags and call no tools"
            raise bad_request(message, "pasta.tags" if options.tags == "keep" else "tools")
        if self.structure is None or self.structure.json is None:
            message = "parts are the fields of an object: give its schema in response_format"
            raise bad_request(f"{message}, with type json_schema", "pasta.parts")
        return self.structure.json

    @property
    def offered(self) -> Sequence[tool_calls.Function]:
        return ()

    def form_of_calls(self, template: ToolTemplate) -> StructuredOutputs | None:
        return None

    def call_reader(self, template: ToolTemplate) -> CallReader | None:
        return None

    def left_out(self, template: ToolTemplate) -> list[str]:
        """Return the names of what has no effect with this model."""
        return []

    @property
    def num_logprobs(self) -> int | None:
        """Return the number of candidates beside each token; None: no log-probabilities."""
        raise NotImplementedError

    def contents(self, bounds: Bounds) -> Sequence[str | TokenIds | tool_calls.Turns]:
        """Return the contents of the prompts; an ``ApiError`` if they are too many."""
        raise NotImplementedError

    def prompts(self, bounds: Bounds, strategy: str) -> list[ClientPrompt]:
        """Return the prompts; the strategy is for requests that name none."""
        options, schema = self.options, self.schema_of_parts
        strategy = options.strategy or (strategy if schema is None else parts.NAME)
        made = partial(ClientPrompt, strategy=strategy, positions=options.positions)
        after, contents = options.after or {}, self.contents(bounds)
        return [made(content, schema=schema, after=after) for content in contents]

    def params(self, bounds: Bounds, defaults: Mapping[str, float]) -> SamplingParams:
        """Return the sampling parameters, tokens and threads lowered to the bounds.

        ``defaults`` are of the model, for what the request leaves out.
        """
        if (self.n or 1) > bounds.n:
            raise bad_request(f"n is {self.n}, but at most {bounds.n} samples are given", "n")
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if len(stops) > bounds.stops or max(map(len, stops), default=0) > bounds.stop_characters:
            message = f"at most {bounds.stops} stop strings of {bounds.stop_characters} characters"
            raise bad_request(message, "stop")
        if not all(stops):
            raise bad_request("a stop string is empty", "stop")
        named = (self.max_completion_tokens, self.max_tokens)
        num_tokens = next((num for num in named if num is not None), bounds.default_tokens)
        if num_tokens == 0:
            raise bad_request("max_tokens is 0, but must be at least 1", "max_tokens")
        options, in_block = self.options, bounds.tokens_per_thread
        defaults = default_sampling(defaults, copies=self.structure is not None)
        sampling = {**defaults, **self.model_dump(include=SAMPLING, exclude_none=True)}
        if sampling.get("top_k", 1) < 1:  # all tokens
            del sampling["top_k"]
        return SamplingParams(
            **sampling, stop=tuple(stops), logprobs=self.num_logprobs,
            max_tokens=bounds.tokens if num_tokens == -1 else min(num_tokens, bounds.tokens),
            seed=secrets.randbits(31) if self.seed is None else self.seed,
            logit_bias={int(token): bias for token, bias in (self.logit_bias or {}).items()},
            fork_bias=options.fork_bias, max_blocks=bounds.blocks,
            max_threads=min(options.max_threads or bounds.threads, bounds.threads),
            structured_outputs=None if options.parts else self.structure,
            max_tokens_per_thread=min(options.max_tokens_per_thread or in_block, in_block),
        )  # fmt: skip


class ChatCompletionRequest(AnswerRequest):
    """A conversation to be continued by the model."""

    messages: Messages
    continue_final_message: bool | None = None  # the two names of vLLM
    add_generation_prompt: bool | None = None
    chat_template_kwargs: Annotated[dict[str, object] | None, fields.FewKeys] = None
    reasoning_effort: str | None = None
    max_thinking_tokens: Annotated[int, Field(ge=0)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    tools: Annotated[list[Tool], Few] | None = None
    tool_choice: Literal["none", "auto", "required"] | Tool | None = None
    parallel_tool_calls: bool | None = None

    @property
    def offered(self) -> Sequence[tool_calls.Function]:
        tools = [] if self.tool_choice == "none" else self.tools or []
        return [tool.function for tool in tools]

    def form_of_calls(self, template: ToolTemplate) -> StructuredOutputs | None:
        """Return the form of the calls that the answer must be, or of these and the other form."""
        choice, functions, form = self.tool_choice, self.offered, self.structure
        is_single = self.parallel_tool_calls is False
        if choice in (None, "none", "auto"):
            if form is None or not self.may_call(template):
                return None
            return template.calls(functions, is_single=is_single, answer=form.json)
        if isinstance(choice, Tool):
            functions = [tool for tool in functions if tool.name == choice.function.name]
        if not functions:
            raise bad_request("tool_choice needs a function among the tools", "tool_choice")
        named = {"type": "function", "function": {"name": functions[0].name}}
        known = [named, *(tool.sent for tool in self.tools or ())]
        if isinstance(choice, Tool) and choice.sent not in known:
            raise bad_request("tool_choice has the name of a function, and no more", "tool_choice")
        if form is not None:
            message = "the answer is a call of a tool, or has the form of response_format"
            raise bad_request(message, "tool_choice")
        return template.calls(functions, is_single=is_single or isinstance(choice, Tool))

    def may_call(self, template: ToolTemplate) -> bool:
        form, is_read = self.structure, template.key is not None and self.options.tags == "strip"
        return bool(self.offered) and is_read and (form is None or form.json is not None)

    def call_reader(self, template: ToolTemplate) -> CallReader | None:
        names = {function.name for function in self.offered}
        is_single = self.parallel_tool_calls is False
        return CallReader(names, is_single=is_single) if self.may_call(template) else None

    def left_out(self, template: ToolTemplate) -> list[str]:
        is_shown = template.shows and self.structure is None and self.options.tags == "strip"
        names = ["tools"] if self.offered and not (is_shown or self.may_call(template)) else []
        is_held = self.tool_choice not in (None, "auto") or not self.may_call(template)
        if not is_held and any(function.sent.get("strict") for function in self.offered):
            names.append("tools.function.strict")
        if tool_calls.NAME not in template.names and any(turn.name for turn in self.messages):
            names.append(tool_calls.NAME)
        kwargs, off = self.chat_template_kwargs or {}, think_kwargs(False).items()
        for name, value in self.variables.items():
            if name not in template.names and (name, value) not in off:
                names.append(f"chat_template_kwargs.{name}" if name in kwargs else name)
        return names

    @property
    def variables(self) -> Json:
        """Return the variables of the chat template; an ``ApiError`` if two say the opposite."""
        effort, kwargs = self.reasoning_effort, self.chat_template_kwargs or {}
        if not effort:
            return kwargs
        off = think_kwargs(False) if effort == "none" else {}
        for name, value in {"reasoning_effort": effort, **off}.items():
            if kwargs.get(name) not in (None, value):
                message = f"reasoning_effort is {effort!r}, but chat_template_kwargs.{name} is not"
                raise bad_request(f"{message} {value!r}: leave one of them out", "reasoning_effort")
        variables = off or {"reasoning_effort": effort}
        return {**variables, **kwargs, **variables}

    @property
    def num_logprobs(self) -> int | None:
        if self.top_logprobs and not self.logprobs:
            raise bad_request("top_logprobs needs logprobs: true", "top_logprobs")
        return (self.top_logprobs or 0) if self.logprobs else None

    def prompts(self, bounds: Bounds, strategy: str) -> list[ClientPrompt]:
        continues = bool(self.continue_final_message)
        if self.add_generation_prompt is continues:
            message = "continue_final_message and add_generation_prompt exclude each other"
            raise bad_request(message, "add_generation_prompt", "unsupported")
        made = super().prompts(bounds, strategy)
        tools = [tool.sent for tool in self.tools or () if self.offered]
        return [
            replace(prompt, continues=continues, tools=tools, chat_template_kwargs=self.variables)
            for prompt in made
        ]

    @property
    def documents(self) -> Sequence[str]:
        """Return the last message, where the spans of parts are."""
        return [str(self.messages[-1].turn["content"])]

    def contents(self, bounds: Bounds) -> Sequence[tool_calls.Turns]:
        if (num := len(self.messages)) > bounds.messages:
            raise bad_request(f"{num} messages, but at most {bounds.messages}", "messages")
        return [[message.turn for message in self.messages]]


class CompletionRequest(AnswerRequest):
    """Texts, or prompts of token ids, to be continued as they stand."""

    prompt: str | fields.Strings | Ids | Annotated[list[Ids], Few]
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def documents(self) -> Sequence[str]:
        """Return the texts of the prompts; of ids nothing."""
        return [row if isinstance(row, str) else "" for row in self._rows]

    @property
    def _rows(self) -> list[str | list[int]]:
        is_alone = isinstance(self.prompt, str) or isinstance(next(iter(self.prompt), None), int)
        return cast("list[str | list[int]]", [self.prompt] if is_alone else self.prompt)

    def contents(self, bounds: Bounds) -> Sequence[str | TokenIds]:
        rows = self._rows
        if not 0 < len(rows) <= bounds.prompts:
            message = f"{len(rows)} prompts, but there must be from 1 to {bounds.prompts}"
            raise bad_request(message, "prompt")
        return [row if isinstance(row, str) else TokenIds(row) for row in rows]


AnyRequest = ChatCompletionRequest | CompletionRequest
