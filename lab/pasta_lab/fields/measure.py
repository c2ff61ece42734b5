"""Decode documents sequentially in JSON mode and as parts; compare what is right, steps, clocks.

Both see the same prompt, which each computes once. A clock is kept where one request is decoded
at a time; the methods then take turns, document by document.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from urllib.request import Request as HttpRequest
from urllib.request import urlopen

from pydantic_core import from_json

from pasta_lab.fields.documents import LONG_ARRAYS, Document, document, documents, kinds
from pasta_lm.engines.request import Request, SamplingParams, StructuredOutputs
from pasta_lm.journal import Journal, Row
from pasta_lm.measure.table import geometric_mean, ratio, to_json
from pasta_lm.strategies import parts
from pasta_lm.strategies.model import Pasta

SEQUENTIAL, OWN = "sequential", "own"
METHODS = (SEQUENTIAL, OWN)
SERVER, SERVER_AT_ONCE = "llama.cpp", "llama.cpp, a request a field"
TOKENS_OF_FIELD, MORE_TOKENS = 30, 60  # what an answer may have; true ones have 12 a field
CURVE = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 30)
"""Numbers of fields of documents with a clock."""
NUM_OF_EACH = 3  # documents of each number


def document_sets(num: int, seed: int) -> Mapping[str, list[Document]]:
    """Return the documents of each set: for accuracy, for the clock, and with long arrays."""
    names = [name for name in kinds() if name != LONG_ARRAYS]
    places = [(count, copy) for count in CURVE for copy in range(NUM_OF_EACH)]
    curve = [
        document(names[place % len(names)], count, seed + 10_000 + copy)
        for place, (count, copy) in enumerate(places)
    ]
    arrays = [document(LONG_ARRAYS, 3, seed + 20_000 + copy) for copy in range(10)]
    return {"documents": [*documents(num, seed)], "curve": curve, "arrays": arrays}


def decode(
    model: Pasta,
    chosen: Sequence[Document],
    journal: Journal,
    at_once: int,
    end_s: float,
    methods: Sequence[str] = METHODS,
    server: str | None = None,
) -> None:
    """Decode what the journal lacks, until the clock reaches ``end_s`` (``time.monotonic``)."""
    missing: list[tuple[Document, str]] = []
    for place, doc in enumerate(chosen):
        turn = methods if place % 2 else methods[::-1]  # no method is always the first
        missing += [(doc, method) for method in turn if f"{doc.name}/{method}" not in journal.rows]
        while missing and (len(missing) >= at_once or doc is chosen[-1]):
            if time.monotonic() > end_s:
                return
            some, missing = missing[:at_once], missing[at_once:]
            served = [_served(server or "", *each) for each in some if each[1] not in METHODS]
            journal.append(served or _decoded(model, some))


def _decoded(model: Pasta, some: Sequence[tuple[Document, str]]) -> list[Row]:
    requests = [_request(model, doc, method) for doc, method in some]
    began = time.perf_counter()
    answers = [samples[0] for samples in model.engine.generate(requests)]
    wall_s = time.perf_counter() - began
    rows = []
    for (doc, method), answer in zip(some, answers, strict=True):
        trace = answer.trace
        row: Row = {"id": f"{doc.name}/{method}", "steps": trace.critical_path}
        row["tokens"] = sum(not token.is_forced for token in trace.tokens)
        row["prompt_tokens"], row["cut"] = trace.num_prompt_tokens, answer.finish_reason == "length"
        row["data"] = _read(answer.text)
        if method != SEQUENTIAL:
            row["data"] = parts.filled(answer, doc.schema).data
        if len(some) == 1:
            row["passes"] = trace.forward_passes
            row["wall_s"], row["prompt_s"] = round(wall_s, 4), round(trace.prefill_s, 4)
        rows.append(row)
    return rows


def _request(model: Pasta, doc: Document, method: str) -> Request:
    params = SamplingParams(max_tokens=_max_tokens(doc))
    messages = [{"role": "user", "content": doc.prompt}]
    if method == SEQUENTIAL:
        params = replace(params, structured_outputs=StructuredOutputs(json=doc.schema))
        return model.request(messages, params, strategy=SEQUENTIAL)
    return parts.fill_request(messages, doc.schema, model.engine.loaded.vocabulary, params)


def _max_tokens(doc: Document) -> int:
    return TOKENS_OF_FIELD * len(doc.values) + MORE_TOKENS


def _read(text: str) -> Any:
    """Read an object; of one that a limit cut, the fields that are whole."""
    return from_json(text, allow_partial=True) if text.strip() else None


# --- llama.cpp's server, as its user would ask it


def _served(url: str, doc: Document, method: str) -> Row:
    schemas = [doc.schema]
    if method == SERVER_AT_ONCE:
        fields = parts.fields_of(doc.schema)
        schemas = [_around(field.path, field.schema) for field in fields]
    began = time.perf_counter()
    with ThreadPoolExecutor(len(schemas)) as pool:
        replies = [*pool.map(lambda schema: _post(url, doc, schema), schemas)]
    wall_s = time.perf_counter() - began
    data: dict[str, Any] = {}
    for reply in replies:
        _merge(data, _read(reply["choices"][0]["message"]["content"]))
    counts = [reply["usage"]["completion_tokens"] for reply in replies]
    cut = any(reply["choices"][0]["finish_reason"] == "length" for reply in replies)
    row = {"id": f"{doc.name}/{method}", "steps": max(counts), "tokens": sum(counts), "cut": cut}
    return {**row, "data": data, "wall_s": round(wall_s, 4)}


def _around(path: tuple[str, ...], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    for key in reversed(path):
        properties = {key: {name: part for name, part in schema.items() if name != "$defs"}}
        closed = {"required": [key], "additionalProperties": False}
        schema = {"type": "object", "properties": properties, **closed}
    return schema


def _merge(data: dict[str, Any], more: Any) -> None:
    for key, value in more.items() if isinstance(more, dict) else ():
        if isinstance(value, dict):
            _merge(data.setdefault(key, {}), value)
        else:
            data[key] = value


def _post(url: str, doc: Document, schema: Mapping[str, Any]) -> Any:
    wanted = {"type": "json_schema", "json_schema": {"name": "facts", "schema": schema}}
    body = {"messages": [{"role": "user", "content": doc.prompt}], "temperature": 0.0}
    body |= {"max_tokens": _max_tokens(doc), "response_format": wanted, "cache_prompt": False}
    headers = {"Content-Type": "application/json"}
    sent = HttpRequest(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
    with urlopen(sent) as reply:  # noqa: S310  # the address is the caller's
        return json.load(reply)


# --- figures

Pair = tuple[Row, Row]


def figures(rows: Sequence[Row], method: str = OWN, baseline: str = SEQUENTIAL) -> dict[str, Any]:
    """Return the comparison of two methods over the documents that both decoded.

    Accuracies are shares of fields; their difference is drawn by document. Steps and clocks are
    geometric means of a document's quotients.
    """
    by_id = {row["id"]: row for row in rows}
    pairs = [
        (by_id[f"{name}/{method}"], by_id[f"{name}/{baseline}"])
        for name in dict.fromkeys(row["id"].rpartition("/")[0] for row in rows)
        if f"{name}/{method}" in by_id and f"{name}/{baseline}" in by_id
    ]
    sizes = sorted({_size(pair) for pair in pairs})
    of_size = {size: [pair for pair in pairs if _size(pair) == size] for size in sizes}
    curve = {str(size): _compared(some) for size, some in of_size.items()}
    return {"method": method, "baseline": baseline, **_compared(pairs), "curve": curve}


def _size(pair: Pair) -> int:
    return int(pair[0]["id"].split("-")[1])


def _compared(pairs: Sequence[Pair]) -> dict[str, Any]:
    right = [[sum(_right(row)) for row in pair] for pair in pairs]
    sizes = [_size(pair) for pair in pairs]
    compared: dict[str, Any] = {
        "num_documents": len(pairs),
        "num_fields": sum(sizes),
        "accuracy": ratio([ours for ours, _ in right], sizes),
        "baseline_accuracy": ratio([theirs for _, theirs in right], sizes),
        "difference": ratio([ours - theirs for ours, theirs in right], sizes),
        "times_fewer_steps": geometric_mean([b["steps"] / max(1, a["steps"]) for a, b in pairs]),
        "tokens": [sum(row["tokens"] for row in column) for column in zip(*pairs, strict=True)],
        "cut": [sum(row["cut"] for row in column) for column in zip(*pairs, strict=True)],
    }
    timed = [(a, b) for a, b in pairs if "wall_s" in a and "wall_s" in b]
    compared["times_faster"] = geometric_mean([b["wall_s"] / a["wall_s"] for a, b in timed])
    apart = [(_behind(a), _behind(b)) for a, b in timed if "prompt_s" in a and "prompt_s" in b]
    compared["times_faster_behind_prompt"] = geometric_mean([b / a for a, b in apart])
    return {name: to_json(value) for name, value in compared.items()}


def _behind(row: Row) -> float:
    return max(1e-6, row["wall_s"] - row["prompt_s"])


def _right(row: Row) -> list[bool]:
    kind, size, rest = row["id"].split("-")
    return document(kind, int(size), int(rest.partition("/")[0])).right(row["data"])
