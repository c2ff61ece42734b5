"""Decode documents sequentially in JSON mode and as parts; compare what is right, steps, clocks.

Both see the same prompt. A clock is kept where one request is decoded at a time; the methods then
take turns, document by document.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic_core import from_json

from pasta_lab.fields.documents import LONG_ARRAYS, Document, document, kinds, names
from pasta_lm.engines.request import Request, SamplingParams, StructuredOutputs
from pasta_lm.errors import UsageError
from pasta_lm.journal import Journal, Row
from pasta_lm.measure.table import geometric_mean, ratio, to_json
from pasta_lm.parts import declared as parts
from pasta_lm.strategies.model import Pasta

SEQUENTIAL, PARTS = METHODS = "sequential", "own"  # as stored records name them
TOKENS_OF_FIELD, MORE_TOKENS = 30, 60  # what an answer may have; true ones have 12 a field
CURVE = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 30)  # fields of documents with a clock


def document_sets(seed: int = 0) -> dict[str, list[str]]:
    """Return names of documents: 200 for accuracy, 36 for the clock, and 10 with long arrays."""
    own = [kind for kind in kinds() if kind != LONG_ARRAYS]
    places = enumerate((count, copy) for count in CURVE for copy in range(3))
    curve = [f"{own[i % len(own)]}-{count}-{seed + 10_000 + copy}" for i, (count, copy) in places]
    curve = curve[0::3] + curve[1::3] + curve[2::3]  # each number once before any twice
    arrays = [f"{LONG_ARRAYS}-3-{seed + 20_000 + copy}" for copy in range(10)]
    return {"documents": names(200, seed), "curve": curve, "arrays": arrays}


def decode(
    model: Pasta, name: str, chosen: Sequence[str], journal: Journal, *, at_once: int, end_s: float
) -> None:
    """Decode what the journal lacks, until the clock reaches ``end_s`` (``time.monotonic``)."""
    if others := {row["model"] for row in journal.rows.values() if "model" in row} - {name}:
        reason = f"{journal.path} has records of {min(others)}, not of {name}"
        raise UsageError(reason, hint="name another file, or that model")
    turns = [METHODS if place % 2 else METHODS[::-1] for place in range(len(chosen))]
    ids = [f"{key}/{method}" for key, turn in zip(chosen, turns, strict=True) for method in turn]
    missing = [key for key in ids if key not in journal.rows]
    while missing and time.monotonic() < end_s:
        some, missing = missing[:at_once], missing[at_once:]
        journal.append([{**row, "model": name} for row in _decoded(model, some)])


def _decoded(model: Pasta, ids: Sequence[str]) -> list[Row]:
    requests = [_request(model, *key.split("/")) for key in ids]
    began = time.perf_counter()
    answers = [samples[0] for samples in model.engine.generate(requests)]
    wall_s = time.perf_counter() - began
    rows = []
    for key, answer in zip(ids, answers, strict=True):
        trace, (name, method) = answer.trace, key.split("/")
        data = parts.filled(answer, document(name).schema).data if method != SEQUENTIAL else None
        if method == SEQUENTIAL and answer.text.strip():  # of a cut object, what is whole
            data = from_json(answer.text, allow_partial=True)
        row: Row = {"id": key, "data": data, "cut": answer.finish_reason == "length"}
        row["tokens"] = sum(not token.is_forced for token in trace.tokens)
        row["steps"], row["prompt_tokens"] = trace.critical_path, trace.num_prompt_tokens
        if len(ids) == 1:
            row["passes"] = trace.forward_passes
            row["wall_s"], row["prompt_s"] = round(wall_s, 4), round(trace.prefill_s, 4)
        rows.append(row)
    return rows


def _request(model: Pasta, name: str, method: str) -> Request:
    doc = document(name)
    params = SamplingParams(max_tokens=TOKENS_OF_FIELD * len(doc.values) + MORE_TOKENS)
    messages = [{"role": "user", "content": doc.prompt}]
    if method == SEQUENTIAL:
        params = replace(params, structured_outputs=StructuredOutputs(json=doc.schema))
        return model.request(messages, params, strategy=SEQUENTIAL)
    vocabulary = model.engine.loaded.vocabulary
    return parts.fill_request(messages, doc.schema, vocabulary, params)


def figures(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the comparison of parts with JSON mode over the documents that both decoded."""
    by_id = {row["id"]: row for row in rows}
    baselines = {key: f"{key.partition('/')[0]}/{SEQUENTIAL}" for key in by_id}
    both = {key.partition("/")[0]: (by_id[key], by_id[base]) for key, base in baselines.items()
            if key.endswith(f"/{PARTS}") and base in by_id}  # fmt: skip
    docs = {name: document(name) for name in both}
    curve = {
        str(size): _compared({name: both[name] for name in both if len(docs[name].values) == size})
        for size in sorted({len(doc.values) for doc in docs.values()})
    }
    return {**_compared(both), "by_number_of_fields": curve}


def _compared(both: Mapping[str, tuple[Row, Row]]) -> dict[str, Any]:
    docs, pairs = [document(name) for name in both], [*both.values()]
    sizes = [len(doc.values) for doc in docs]
    right = [[doc.num_right(row["data"]) for row in both[doc.name]] for doc in docs]
    timed = [(a, b) for a, b in pairs if "wall_s" in a and "wall_s" in b]
    behind = [tuple(row["wall_s"] - row["prompt_s"] for row in pair) for pair in timed]
    compared: dict[str, Any] = {
        "num_documents": len(pairs),
        "num_fields": sum(sizes),
        "accuracy": ratio([ours for ours, _ in right], sizes),
        "sequential_accuracy": ratio([theirs for _, theirs in right], sizes),
        "right_of_given": _right(both, docs, nulls=False),
        "right_of_null": _right(both, docs, nulls=True),
        "difference": ratio([ours - theirs for ours, theirs in right], sizes),
        "times_fewer_steps": geometric_mean([b["steps"] / max(1, a["steps"]) for a, b in pairs]),
        "times_faster": geometric_mean([b["wall_s"] / a["wall_s"] for a, b in timed]),
        "times_faster_behind_the_prompt": geometric_mean([b / a for a, b in behind]),
        "tokens": [sum(row["tokens"] for row in column) for column in zip(*pairs, strict=True)],
        "cut": [sum(row["cut"] for row in column) for column in zip(*pairs, strict=True)],
    }
    return {name: to_json(value) for name, value in compared.items()}


def _right(both: Mapping[str, tuple[Row, Row]], docs: Sequence[Document], *, nulls: bool) -> Any:
    """Return the fields that are right as parts and in JSON mode, and their number."""
    num = sum((value is None) is nulls for doc in docs for value in doc.values.values())
    columns = zip(*(both[doc.name] for doc in docs), strict=True)
    pairs = [zip(docs, column, strict=True) for column in columns]
    return [*(sum(d.num_right(r["data"], nulls=nulls) for d, r in pair) for pair in pairs), num]
