"""Schemas of others: each is compiled, or refused with a reason, and what matches is validated.

A tiny random model writes under each schema that compiles, sequentially and by ``fill``; what it
ends must be valid by the package ``jsonschema``. What a limit cuts is counted apart.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import jsonschema  # type: ignore[import-untyped]
from referencing.exceptions import Unresolvable  # type: ignore[import-not-found]

from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.passes.self_test import tiny_llama
from pasta_lm.engines.request import Request, SamplingParams, StructuredOutputs
from pasta_lm.errors import UsageError
from pasta_lm.learn.random_model import random_model, train_tokenizer
from pasta_lm.parts import declared as parts
from pasta_lm.strategies.requests import sequential_request

MAX_TOKENS, NUM_SAMPLES, NUM_PIECES, AT_ONCE = 300, 2, 1200, 16
MAX_CHARACTERS = 60_000  # of a schema; the tokenizer is trained on the first hundred of each
ENDING_BIAS = 5.0  # of tokens that begin with a quote or bracket: random weights seldom end a text
UNNAMED = {"draft4": "draft-04", "draft6": "draft-06", "draft7": "draft-07"}  # folders of the suite
Schemas = Mapping[str, dict[str, Any]]  # by the names of their files


def read_schemas(folder: Path) -> dict[str, dict[str, Any]]:
    """Read a folder: files with a schema each, or with cases of the test suite."""
    read = {}
    for path in sorted(folder.rglob("*.json")):
        data, name = json.loads(path.read_text("utf-8")), path.relative_to(folder)
        draft = UNNAMED.get(name.parts[0])
        for number, case in enumerate(data if isinstance(data, list) else [{"schema": data}]):
            schema = case["schema"]
            if isinstance(schema, dict) and len(json.dumps(schema)) <= MAX_CHARACTERS:
                named = {"$schema": f"http://json-schema.org/{draft}/schema#"} if draft else {}
                read[f"{name}:{number}"] = {**named, **schema}
    return read


def drawn(schemas: Schemas, num: int) -> Schemas:
    """Draw different schemas."""
    names = {json.dumps(schema, sort_keys=True): name for name, schema in schemas.items()}
    chosen = Random(0).sample([*names.values()], min(max(num, 0), len(names)))
    return {name: schemas[name] for name in chosen}


class SchemaCheck:
    """The engine of a tiny random model, and the report of what it wrote."""

    def __init__(self, schemas: Schemas) -> None:
        tokenizer = train_tokenizer(
            (json.dumps(each)[:100] for each in schemas.values()), NUM_PIECES
        )
        loaded = random_model(tiny_llama().config, tokenizer, name="random")
        self._engine = TorchEngine(loaded, pool_tokens=128 * MAX_TOKENS)
        self._vocabulary = loaded.vocabulary
        pieces = ((token, tokenizer.decode([token])) for token in range(len(tokenizer)))
        ends = {token: ENDING_BIAS for token, text in pieces if text[:1] in {*'"]},'}}
        self._params = SamplingParams(max_tokens=MAX_TOKENS, temperature=1.0, logit_bias=ends)
        self.counts, self.max_compile_s, self.faults = Counter[str](), 0.0, list[str]()
        self._schemas = schemas

    def report(self) -> dict[str, Any]:
        """Check all, some at a time; return counts and whatever is wrong."""
        names = [*self._schemas]
        for place in range(0, len(names), AT_ONCE):
            some = names[place : place + AT_ONCE]
            requests = [(name, request) for name in some for request in self._requests(name)]
            answers = self._engine.generate([request for _, request in requests])
            for (name, request), (answer, *_) in zip(requests, answers, strict=True):
                text, is_cut = answer.text, answer.finish_reason == "length"
                if request.strategy == parts.NAME:
                    filled = parts.filled(answer, self._schemas[name])
                    text, is_cut = filled.text, bool(filled.unfinished)
                self._note(name, request.strategy, None if is_cut else text)
        counts = {"counts": dict(self.counts.most_common()), "num_schemas": len(names)}
        return {**counts, "max_compile_s": round(self.max_compile_s, 3), "faults": self.faults}

    def _requests(self, name: str) -> Iterator[Request]:
        schema, began = self._schemas[name], time.perf_counter()
        wanted, prompt = StructuredOutputs(json=schema), self._vocabulary.encode_text("Write: ")
        try:
            self._engine.grammars.matcher(wanted)
            self.counts["compiled"] += 1
            for seed in range(NUM_SAMPLES):
                params = replace(self._params, seed=seed, structured_outputs=wanted)
                yield sequential_request(prompt, params)
            request = parts.fill_request("Write: ", schema, self._vocabulary, self._params)
            for _, structure in request.structures:
                self._engine.grammars.matcher(structure)
            yield request
        except UsageError as exc:
            self.counts[f"refused: {reason(str(exc))}"] += 1
        except Exception as exc:
            self.faults.append(f"{name}: {type(exc).__name__}: {exc}")
        self.max_compile_s = max(self.max_compile_s, time.perf_counter() - began)

    def _note(self, name: str, strategy: str, text: str | None) -> None:
        ending = "cut by the limit" if text is None else judged(self._schemas[name], text)
        self.counts[f"{strategy}: {ending.partition(': ')[0]}"] += 1
        if ending.startswith("invalid"):
            self.faults.append(f"{name}: {strategy}: {ending}: {text}")


def judged(schema: Mapping[str, Any], text: str) -> str:
    """Return ``valid`` for a JSON value that a schema allows, or why it is not."""
    validator = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    try:
        validator(schema, format_checker=validator.FORMAT_CHECKER).validate(json.loads(text))
    except (re.error, Unresolvable, OverflowError):  # a pattern, 1e308: limits of Python
        return "the validator fails"
    except (ValueError, jsonschema.ValidationError) as exc:
        return f"invalid: {str(exc).splitlines()[0]}"
    return "valid"


def reason(message: str) -> str:
    """Return a refusal without what differs between schemas; of keywords the first."""
    short = message.partition("cannot be used: ")[2] or message
    keyword = re.search(r'that cannot be held: "([^"]*)', short)
    return f"keyword {keyword[1]}" if keyword else re.split(r"[:'\"/(]", short)[0].strip()
