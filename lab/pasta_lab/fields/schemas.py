"""Schemas of others: each is compiled, or refused with a reason, and what matches is validated.

A tiny random model writes under each schema that compiles, sequentially and by ``fill``; what it
ends must be valid by the package ``jsonschema``. What a limit cuts is counted apart.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import jsonschema
from referencing.exceptions import Unresolvable
from jsonschema.exceptions import SchemaError
from jsonschema.validators import validator_for
from transformers import LlamaConfig

from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.local.loading import random_model, train_tokenizer
from pasta_lm.engines.request import Request, SamplingParams, StructuredOutputs
from pasta_lm.errors import PastaError, UsageError
from pasta_lm.strategies import parts, sequential

MAX_TOKENS, NUM_SAMPLES, NUM_PIECES, AT_ONCE = 300, 2, 1200, 16
MAX_CHARACTERS = 60_000  # of a schema; the tokenizer is trained on the first hundred of each
ENDING_BIAS = 5.0  # of tokens that begin with a quote or bracket: random weights seldom end a text
DRAFTS = {"draft4": "draft-04", "draft6": "draft-06", "draft7": "draft-07"}
"""Folders of the test suite whose schemas do not name their draft."""


class PublicSchema(NamedTuple):
    """A schema and where it is from."""

    source: str
    name: str
    schema: Mapping[str, Any]


@dataclass
class SchemaReport:
    """Counts over all schemas, and whatever is wrong."""

    num_schemas: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)  # of answers, by how they ended
    faults: list[str] = field(default_factory=list)
    max_compile_s: float = 0.0


def read_schemas(folder: Path) -> Iterator[PublicSchema]:
    """Yield the schemas of a folder: files with one each, or with cases of the test suite."""
    for path in sorted(folder.rglob("*.json")):
        data = json.loads(path.read_text("utf-8"))
        relative = path.relative_to(folder)
        draft = next((DRAFTS[part] for part in relative.parts if part in DRAFTS), None)
        for number, case in enumerate(data if isinstance(data, list) else [{"schema": data}]):
            schema = case.get("schema")
            if isinstance(schema, dict) and len(json.dumps(schema)) <= MAX_CHARACTERS:
                named = {"$schema": f"http://json-schema.org/{draft}/schema#"} if draft else {}
                yield PublicSchema(relative.parts[0], f"{relative}:{number}", {**named, **schema})


def drawn(schemas: Sequence[PublicSchema], num: int, seed: int) -> list[PublicSchema]:
    """Draw different schemas."""
    different = {json.dumps(entry.schema, sort_keys=True): entry for entry in schemas}
    entries = [*different.values()]
    return entries if num >= len(entries) else Random(seed).sample(entries, num)


class SchemaCheck:
    """The engine of a tiny random model, and the report of what it wrote."""

    def __init__(self, schemas: Sequence[PublicSchema], seed: int) -> None:
        texts = [json.dumps(entry.schema)[:100] for entry in schemas]
        config = LlamaConfig(
            hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=1, max_position_embeddings=4096, tie_word_embeddings=True,
        )  # fmt: skip
        tokenizer = train_tokenizer(texts, NUM_PIECES)
        loaded = random_model(config, tokenizer, name="random", seed=seed)
        pool_tokens = 128 * MAX_TOKENS
        self._engine, self._vocabulary = TorchEngine(loaded, pool_tokens=pool_tokens), loaded.vocabulary
        pieces = ((token, tokenizer.decode([token])) for token in range(len(tokenizer)))
        ends = {token: ENDING_BIAS for token, text in pieces if text[:1] in {*'"]},'}}
        self._params = SamplingParams(max_tokens=MAX_TOKENS, temperature=1.0, logit_bias=ends)
        self.report = SchemaReport()

    def run(self, schemas: Sequence[PublicSchema]) -> SchemaReport:
        """Check all, some at a time."""
        for place in range(0, len(schemas), AT_ONCE):
            requests: list[tuple[PublicSchema, Request]] = []
            for entry in schemas[place : place + AT_ONCE]:
                self.report.num_schemas += 1
                requests += [(entry, request) for request in self._requests(entry)]
            answers = self._engine.generate([request for _, request in requests])
            for (entry, request), (answer, *_) in zip(requests, answers, strict=True):
                if request.strategy == parts.NAME:
                    filled = parts.filled(answer, entry.schema)
                    self._note(entry, "fill", filled.text, is_cut=bool(filled.unfinished))
                else:
                    is_cut = answer.finish_reason == "length"
                    self._note(entry, "sequential", answer.text, is_cut=is_cut)
        return self.report

    def _requests(self, entry: PublicSchema) -> Iterator[Request]:
        wanted = StructuredOutputs(json=entry.schema)
        began = time.perf_counter()
        try:
            self._engine.grammars.matcher(wanted)
        except UsageError as exc:
            self.report.refused[reason(str(exc))] += 1
            return
        except Exception as exc:
            self.report.faults.append(f"{entry.name}: compiling: {type(exc).__name__}: {exc}")
            return
        finally:
            spent = time.perf_counter() - began
            self.report.max_compile_s = max(self.report.max_compile_s, spent)
        self.report.counts["compiled"] += 1
        for seed in range(NUM_SAMPLES):
            params = replace(self._params, seed=seed, structured_outputs=wanted)
            yield sequential.request(self._vocabulary.encode_text("Write: "), params)
        try:
            request = parts.fill_request("Write: ", entry.schema, self._vocabulary, self._params)
            for part in parts.fields_of(entry.schema):
                inside = StructuredOutputs(json=part.schema, is_inside=True)
                self._engine.grammars.matcher(inside)
        except PastaError as exc:
            self.report.counts[f"no parts: {reason(str(exc))}"] += 1
            return
        except Exception as exc:
            self.report.faults.append(f"{entry.name}: parts: {type(exc).__name__}: {exc}")
            return
        yield request

    def _note(self, entry: PublicSchema, how: str, text: str, *, is_cut: bool) -> None:
        ending = "cut by the limit" if is_cut else "valid"
        try:
            fault = None if is_cut else invalid(entry.schema, text)
        except (re.error, Unresolvable):  # a pattern that Python's re does not read
            ending, fault = "the validator fails", None
        if fault:
            ending = "invalid"
            self.report.faults.append(f"{entry.name}: {how}: {fault}: {text[:300]}")
        self.report.counts[f"{how}: {ending}"] += 1


def invalid(schema: Mapping[str, Any], text: str) -> str | None:
    """Return why a text is no JSON value that a schema allows; None if it is one."""
    validator = validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        value = json.loads(text, object_pairs_hook=_different)
        validator(schema, format_checker=validator.FORMAT_CHECKER).validate(value)
    except ValueError as exc:
        return f"no JSON: {exc}"
    except jsonschema.ValidationError as exc:
        return exc.message[:200]
    except SchemaError as exc:
        return f"the schema is wrong: {exc.message[:200]}"
    return None


def _different(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key occurs twice")
    return dict(pairs)


def reason(message: str) -> str:
    """Return a refusal without what differs between schemas."""
    short = message.partition("cannot be used: ")[2] or message
    short = re.sub(r"\d+", "N", short.splitlines()[0])
    keys = re.search(r"Unimplemented keys: (.*)", short)
    return short if keys else re.sub(r"'[^']*'|\"[^\"]*\"|: .*", "", short).strip()
