"""Teach a model the fields of documents that a person labelled, each behind what its part sees.

Every fifth document is held back: ``journal.jsonl`` has the fields that the model fills right in
them ``before`` and ``after``, ``teach.json`` the settings, ``model`` is the adapter.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random

from pasta_lm.engines.devices import free_memory
from pasta_lm.engines.grammars import Grammars, allowed_bytes
from pasta_lm.engines.local.engine import DEFAULT_POOL_TOKENS
from pasta_lm.engines.schemas import Schema
from pasta_lm.errors import InputError, UsageError
from pasta_lm.learn.data.encode import EncodedExample, encode_parts
from pasta_lm.learn.train.config import SftConfig
from pasta_lm.learn.train.learner import MODEL_FOLDER, check_is_whole
from pasta_lm.learn.train.sft import finetune
from pasta_lm.learn.train.trainer import load_to_train
from pasta_lm.models.load import hashes_of
from pasta_lm.parts.declared import NAME, as_json, check_fields
from pasta_lm.parts.fields import MAX_FIELDS, definitions_of, fields_of, resolved
from pasta_lm.parts.values import is_same, value_at
from pasta_lm.parts.wanted import below
from pasta_lm.recipe import read_recipe
from pasta_lm.run_folder import RunFolder, full_disk_named, hash_files, say
from pasta_lm.strategies import Prompt
from pasta_lm.strategies.model import Pasta
from pasta_lm.teaching.run import JOURNAL, SETTINGS, Result

Keys = tuple[str, ...]
HELD_BACK = slice(4, None, 5)
AS_WRITTEN = "keys in the order of the schema, whole numbers without a point"
DEFAULTS = """data.max_tokens=4096 train.epochs=2 train.learning_rate=2e-4 train.warmup=0.1
    train.accumulate=4 train.seed=0 train.save_steps=50 train.dtype= train.checkpointing=
    lora.rank=16 lora.alpha=32"""
FIXED = """train.save=adapter train.positions=continue train.join=recompute train.log_steps=1
    train.mixed_precision=true lora.trained_tokens=none"""

Row = tuple[str | int, Prompt, str | None, object]
"""A document as ``read_documents`` yields it: id, prompt, why it cannot be read, and its data."""
Labelled = tuple[str, Prompt, Mapping[int, str]]
"""The id, the prompt, and by the numbers of parts their values as JSON, each up to its mark."""


def recipe_of(model: str, file: Path, out: Path, changes: Sequence[str]) -> SftConfig:
    """Return the recipe of the training; a ``UsageError`` names a change that plays no part."""
    keys = [line.partition("=")[0] for line in DEFAULTS.split()]
    if unread := [line for line in changes if line.partition("=")[0].strip() not in keys]:
        raise UsageError(f"--parts does not read {unread[0]}", hint=f"keys: {', '.join(keys)}")
    places = {"model.base": model, "data.file": file, "train.out": out.resolve()}
    named = (f"{key}={as_json(str(value))}" for key, value in places.items())
    return read_recipe(None, SftConfig, [*named, *FIXED.split(), *DEFAULTS.split(), *changes])


def labelled(schema: Schema, prompt: str | None, rows: Iterable[Row]) -> list[Labelled]:
    """Return documents with their data; an ``InputError`` names document, field and fault."""
    check_fields(schema, {})
    documents, parts = list[Labelled](), fields_of(schema)
    leads = [later.lead_behind(part.path) for part, later in pairwise(parts)]
    marks = {part.path: lead[0] for part, lead in zip(parts, [*leads, "}"], strict=True)}
    numbers, definitions = {path: n for n, path in enumerate(marks)}, definitions_of(schema)
    counts = {n: allowed_bytes(form) for n, part in enumerate(parts) if (form := part.structure())}
    for name, document, error, data in rows:
        try:
            if error or not (data and isinstance(data, Mapping)):
                raise InputError(error or "it has no data, an object with the values of fields")
            values = dict(_values(schema, data, marks, definitions))
            texts = {numbers[p]: f" {as_json(value)}{marks[p]}" for p, value in values.items()}
            for number, text in texts.items():
                _check_text(text, parts[number].name, counts[number])
            documents.append((str(name), below(prompt, document), texts))
        except InputError as exc:
            hint = exc.hint or 'a line is {"id": "a", "text": "...", "data": {...}}'
            raise InputError(f"document {name}: {exc.message}", hint=hint) from exc
    if len(documents) < 2:
        raise InputError(f"{len(documents)} labelled documents are too few", hint="give 2 or more")
    if empty := [name for name, _, texts in documents if not texts]:
        raise InputError(f"document {empty[0]}: its data have no value")
    return documents


def _values(
    part: Schema, data: Schema, paths: Collection[Keys], definitions: Schema, keys: Keys = ()
) -> Iterator[tuple[Keys, object]]:  # fmt: skip
    whole, within = resolved(part, definitions), f"{'.'.join(keys)}." if keys else ""
    if others := data.keys() - whole["properties"].keys():
        hint = f"its fields: {', '.join(whole['properties'])}"
        raise InputError(f"the schema has no field {within}{min(others)}", hint=hint)
    for key, value in whole["properties"].items():
        path = (*keys, key)
        if key not in data:
            if key in whole.get("required", ()):
                raise InputError(f"field {within}{key} is required, and has no value")
        elif path in paths:
            yield path, data[key]
        elif isinstance(data[key], Mapping):
            yield from _values(value, data[key], paths, definitions, path)
        else:
            raise InputError(f"field {within}{key} is an object, not {as_json(data[key])}")


def _check_text(text: str, name: str, num_allowed: Callable[[bytes], int]) -> None:
    text_bytes = text.encode()
    allowed = text_bytes[: num_allowed(text_bytes)].decode(errors="ignore")
    if rest := text.removeprefix(allowed):
        reason = f"the schema does not allow{text[:-1]}, from {rest!r} on"
        raise InputError(f"field {name}: {reason}", hint=AS_WRITTEN)


def examples_of(
    documents: Sequence[Labelled], schema: Schema, config: SftConfig
) -> list[EncodedExample]:
    """Encode documents by the requests of ``fill``."""
    with Pasta.from_pretrained(config.model.base) as model:
        wanted, loaded = model.filling(schema, max_blocks=MAX_FIELDS), model.engine.loaded
    words, parts, examples = loaded.vocabulary, fields_of(schema), list[EncodedExample]()
    grammars, most = Grammars(words, words.num_tokens, [*loaded.eos_ids]), config.data.max_tokens
    for form in filter(None, (part.structure() for part in parts)):
        grammars.matcher(form)  # refuses a tokenizer that lacks letters
    for name, prompt, texts in documents:
        for number, text in texts.items():
            if (kept := words.text(words.encode_text(text))) != text:
                reason = f"field {parts[number].name}: the tokenizer reads{kept[:-1]}"
                raise InputError(f"document {name}: {reason}", hint="write it so")
        example = encode_parts(name, wanted.request(prompt), texts, words)
        if len(example) > most or max(example.positions) > (loaded.max_position or most):
            reason = f"document {name} has {len(example)} tokens with its fields"
            hint = "leave it out; a document is limited by the model and --set data.max_tokens=N"
            raise InputError(f"{reason}, too many", hint=hint)
        examples.append(example)
    return examples


def teach_parts(
    documents: Sequence[Labelled], schema: Schema, prompt: str | None, config: SftConfig
) -> Path:
    """Teach a model the values of documents, where a run stopped; return the adapter's folder."""
    base, out = config.model.base, Path(config.train.out)
    run, held_back = RunFolder(out, SETTINGS), documents[HELD_BACK]
    run.require_own(MODEL_FOLDER, "checkpoint-*")
    check_is_whole(base)
    examples = examples_of(documents, schema, config)
    del examples[HELD_BACK]
    measure = partial(num_right, held_back, schema, max_tokens=config.data.max_tokens)

    def train() -> Result:
        learner = load_to_train(base, config.train, config.lora, NAME)
        order = Random(config.train.seed).sample(examples, len(examples))
        finetune(learner, [[each] for each in order], config.train, config.lora, resume=True)
        return {"documents": len(order)}

    steps: dict[str, Callable[[], Result]] = {
        "before": partial(measure, base), "taught": train,
        "after": partial(measure, out / MODEL_FOLDER),
    }  # fmt: skip
    with run.locked(), full_disk_named(out):
        run.begin(
            {"schema": json.dumps(schema), "prompt": prompt, **asdict(config)},
            may_change={"model.base", "data.file", "train.out", "train.save_steps"},  # moved files
            inputs=hashes_of("model", base) | {"data.file": hash_files(*config.data.paths)},
        )
        journal = run.journal(JOURNAL)
        say(f"{len(held_back)} documents are held back, to be filled before and after")
        for name, carry_out in steps.items():
            if name not in journal.rows:
                free_memory()
                journal.append([{"id": name, **carry_out()}])
    before, after = (journal.rows[name] for name in ("before", "after"))
    right = f"{before['right']} of {before['fields']} before, {after['right']} after"
    say(f"fields right in {len(held_back)} documents that were held back: {right}")
    return out / MODEL_FOLDER


def num_right(
    documents: Sequence[Labelled], schema: Schema, source: str | Path, *, max_tokens: int
) -> Result:  # fmt: skip
    """Count the values that a model fills right, greedily."""
    parts, right = fields_of(schema), list[bool]()
    if not documents:
        return {"fields": 0, "right": 0}
    room = max(DEFAULT_POOL_TOKENS, 2 * max_tokens)  # a document, and as many decoded tokens
    with Pasta.from_pretrained(source, pool_tokens=room) as model:
        wanted = model.filling(
            schema, temperature=0.0, max_tokens=max_tokens, max_blocks=MAX_FIELDS
        )
        answers = model.engine.generate([wanted.request(prompt) for _, prompt, _ in documents])
    for (_, prompt, texts), (answer, *_) in zip(documents, answers, strict=True):
        filled = wanted.read(answer, prompt)
        for part, text in ((parts[number], text) for number, text in texts.items()):
            is_right = is_same(value_at(part.path, filled.data), part.read(text)[0])
            right.append(is_right and part.name not in filled.unfinished)
    return {"fields": len(right), "right": sum(right)}
