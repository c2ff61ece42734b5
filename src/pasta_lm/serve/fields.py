"""The fields of the objects of a request, and what becomes of others.

A field that this server does not know is refused by name, unless its value asks for nothing or the
field changes no answer: ``IGNORED`` says which those are, and why.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, Self

import pydantic
from pydantic import BaseModel, Field

from pasta_lm.engines.request import StructuredOutputs
from pasta_lm.engines.schemas import FLEXIBLE
from pasta_lm.serve.errors import Json, bad_request

STRICT = pydantic.ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
MAX_KEYS = 300  # as OpenAI's of logit_bias
ANY_OBJECT: Json = {"type": "object"}


def with_few_keys(value: object) -> object:
    """Refuse an object of many keys before their values are checked."""
    if isinstance(value, dict) and len(value) > MAX_KEYS:
        raise ValueError(f"it has {len(value)} keys, but at most {MAX_KEYS}")
    return value


FewKeys = pydantic.BeforeValidator(with_few_keys)
Positive = Annotated[int, Field(ge=1)]
Bias = Annotated[float, Field(ge=-100, le=100)]
Strings = Annotated[list[str], Field(fail_fast=True)]
Names = Annotated[list[str], Field(max_length=MAX_KEYS, fail_fast=True)]

_IGNORED: tuple[tuple[str, str, str], ...] = (
    ("request", "user safety_identifier metadata", "who asks, and notes of the client"),
    ("request", "store", "replies are never kept"),
    ("request", "service_tier priority", "clients take turns"),
    ("request", "prompt_cache_key prompt_cache_retention cache_prompt",
     "what prompts have in common is found without them"),
    ("request", "num_ctx num_batch num_gpu num_thread keep_alive",
     "how Ollama loads a model: this one is loaded, with its whole context"),
    ("stream_options", "include_obfuscation", "padding of the pieces, which have none"),
    ("json_schema", "strict", "an answer always matches"),
    ("json_schema", "description", "as parts the model sees the schema alone: write it there"),
    ("messages", "annotations index parsed parsed_arguments provider_specific_fields",
     "what clients note on an earlier reply and its calls"),
    ("messages", "cache_control", "as prompt_cache_key"),
)  # fmt: skip
IGNORED = {(owner, name): why for owner, names, why in _IGNORED for name in names.split()}
"""Fields that change no answer, by the object they are in, with the reason."""

_NEUTRAL: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("allowed_token_ids bad_words banned_tokens documents functions guided_choice lora", ([],)),
    ("logits_processors stop_token_ids", ([],)),
    ("continuous_usage_stats echo include_stop_str_in_output prefix safe_prompt", (False,)),
    ("return_token_ids return_tokens_as_token_ids timings_per_token use_beam_search", (False,)),
    ("include_reasoning separate_reasoning skip_special_tokens", (True,)),
    ("spaces_between_special_tokens stream_reasoning", (True,)),
    ("grammar suffix", ("",)),
    ("dry_multiplier dynatemp_range min_tokens mirostat no_repeat_ngram_size n_probs", (0,)),
    ("top_a xtc_probability", (0,)),
    ("best_of length_penalty repeat_penalty tfs_z typical_p typ_p", (1,)),
    ("id_slot top_n_sigma truncate_prompt_tokens", (-1,)),
    ("function_call", ("none", "auto")),
    ("modalities", (["text"],)),
    ("verbosity", ("medium",)),
)
NEUTRAL = {name: values for names, values in _NEUTRAL for name in names.split()}
"""Fields of other servers, with the values that ask for nothing; null always does."""

_INSTEAD = {
    "enable_thinking thinking think": 'chat_template_kwargs: {"enable_thinking": …}',
    "thinking_budget thinking_budget_tokens thinking_token_budget": "max_thinking_tokens",
    "prefix": "continue_final_message: true",
    "n_predict num_predict max_new_tokens": "max_tokens",
    "guided_json guided_regex guided_choice guided_grammar": "structured_outputs",
    "json_schema regex ebnf grammar": "structured_outputs",
}
INSTEAD = {name: ours for names, ours in _INSTEAD.items() for name in names.split()}
"""Fields of other servers, with those that do the same here."""


class Fields(BaseModel):
    """An object of a request: it has no field that is neither obeyed nor without effect."""

    model_config = STRICT
    owner: ClassVar[str] = ""  # the name of the object in ``IGNORED``
    _sent: Json = pydantic.PrivateAttr(default_factory=dict)

    @property
    def sent(self) -> Json:
        """Return the fields as they came and in that order, without those of no effect."""
        return self._sent

    @pydantic.model_validator(mode="wrap")
    @classmethod
    def _with_effect(cls, value: object, handler: pydantic.ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(value, dict):
            return handler(value)
        known, other = {field.alias or name for name, field in cls.model_fields.items()}, {}
        if cls.model_config["extra"] == "forbid":
            # One of them is enough for the error: an object may have a million.
            first = next(cls._unknown(value, known), None)
            other = {} if first is None else {first: value[first]}
            value = {name: item for name, item in value.items() if name in known}
        made = handler({**value, **other})
        made._sent = value
        return made

    @classmethod
    def _unknown(cls, value: Json, known: set[str]) -> Iterator[str]:
        for name, item in value.items():
            has_effect = item is not None and item not in NEUTRAL.get(name, ())
            if has_effect and name not in known and (cls.owner, name) not in IGNORED:
                yield name


class StreamOptions(Fields):
    """OpenAI's options of a stream."""

    owner = "stream_options"
    include_usage: bool | None = None


class JsonSchema(Fields):
    """A schema and its name, which the model does not see."""

    owner = "json_schema"
    name: str | None = None
    schema_: Json = Field(alias="schema")


class ResponseFormat(Fields):
    """OpenAI's form of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @pydantic.model_validator(mode="after")
    def _has_its_schema(self) -> Self:
        has_schema = self.json_schema is not None
        if (self.type == "json_schema") != has_schema:
            raise ValueError("json_schema, with its schema, belongs to the type json_schema")
        return self


class StructuredFields(BaseModel):
    """vLLM's structured outputs: what the answer must match, in one of several ways."""

    model_config = STRICT
    json_: Json | None = Field(None, alias="json")
    regex: str | None = None
    choice: Strings | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool | None = None  # JSON is compact unless this is false

    @property
    def form(self) -> StructuredOutputs:
        if self.json_object and self.json_ is not None:
            raise bad_request("json and json_object are two forms", "structured_outputs")
        json = ANY_OBJECT if self.json_object else self.json_
        if json is not None and self.disable_any_whitespace is False:
            json = {"x-guidance": FLEXIBLE, **json}
        choice = None if self.choice is None else tuple(self.choice)
        return StructuredOutputs(json=json, regex=self.regex, choice=choice, grammar=self.grammar)


class PastaOptions(BaseModel):
    """Our own options, in one object; an unknown one is an error."""

    model_config = STRICT
    strategy: str | None = None
    positions: str | None = None
    fork_bias: Bias | None = None
    max_threads: Positive | None = None
    max_tokens_per_thread: Annotated[int, Field(ge=3)] | None = None
    stream: Literal["text", "events"] = "text"
    tags: Literal["strip", "keep"] = "strip"
    trace: bool = False
    parts: bool = False
    spans: bool = False
    confidence: bool = False
    after: Annotated[dict[str, Names] | None, FewKeys] = None
