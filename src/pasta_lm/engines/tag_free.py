"""Rewrite the JSON of a tokenizer so that chosen tokens do not exist.

A token can be matched in two ways: as an added token, and as a whole word of the model's own
vocabulary (a Unigram model, or a BPE with ``ignore_merges``). Both are closed here. What remains
may be renumbered when it is read back; whoever reads it maps the ids by their spelling.

Knows the format of ``tokenizer.json`` and nothing of tags.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

Json = dict[str, Any]

_STAGES = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers"}
"""Which key of a tokenizer, when it holds a sequence, lists its parts under which name."""


def without_tokens(tokenizer: Json, spellings: Collection[str], ids: Collection[int]) -> Json:
    """Return a tokenizer that never makes these tokens, wherever they are defined.

    Args:
        tokenizer: What ``tokenizer.json`` holds; not changed.
        spellings: Tokens by their content.
        ids: Tokens by their id, for those that the model spells in an alphabet of its own.
    """
    added = [
        token
        for token in tokenizer["added_tokens"]
        if token["content"] not in spellings and token["id"] not in ids
    ]
    remove = _from_pieces if tokenizer["model"]["type"] == "Unigram" else _from_words
    model = remove(tokenizer["model"], set(spellings), set(ids))
    # A truncation or padding that someone left switched on is no part of encoding.
    return {**tokenizer, "added_tokens": added, "model": model, "truncation": None, "padding": None}


def as_middle_of_text(tokenizer: Json) -> Json:
    """Return a tokenizer that adds nothing to a text and strips nothing from its ends."""
    changed: Json = {"post_processor": None}
    for key, parts in _STAGES.items():
        stages = [_without_prefix(stage) for stage in _stages(tokenizer[key], parts)]
        stages = [stage for stage in stages if stage["type"] not in {"Prepend", "Strip"}]
        changed[key] = {"type": "Sequence", parts: stages} if stages else None
    return tokenizer | changed


def decoder_types(tokenizer: Json) -> frozenset[str]:
    """Return which kinds of decoder a tokenizer chains."""
    return frozenset(stage["type"] for stage in _stages(tokenizer["decoder"], "decoders"))


def _stages(stage: Json | None, parts: str) -> Iterator[Json]:
    """Yield the stages of a possibly nested sequence, one after the other."""
    if stage is None:
        return
    if stage["type"] != "Sequence":
        yield stage
        return
    for part in stage[parts]:
        yield from _stages(part, parts)


def _without_prefix(stage: Json) -> Json:
    if stage["type"] == "Metaspace":
        return {**stage, "prepend_scheme": "never"}
    if stage["type"] == "ByteLevel":
        return {**stage, "add_prefix_space": False}
    return stage


def _from_words(model: Json, spellings: set[str], ids: set[int]) -> Json:
    """Remove from a model that has a table of words: BPE, WordPiece, WordLevel."""
    # The unknown token must stay: without it, a character that has no token is an error.
    kept = model.get("unk_token")
    gone = {
        token
        for token, token_id in model["vocab"].items()
        if (token in spellings or token_id in ids) and token != kept
    }
    if not gone:
        return model
    changed: Json = {"vocab": {word: i for word, i in model["vocab"].items() if word not in gone}}
    if "merges" in model:
        prefix = len(model.get("continuing_subword_prefix") or "")
        changed["merges"] = [
            (left, right)
            for left, right in model["merges"]
            if gone.isdisjoint((left, right, left + right[prefix:]))
        ]
    return model | changed


def _from_pieces(model: Json, spellings: set[str], ids: set[int]) -> Json:
    """Remove from a Unigram model, whose ids are places in its list."""
    pieces, unknown = model["vocab"], model["unk_id"]
    kept = [
        place
        for place, (token, _) in enumerate(pieces)
        if place == unknown or (token not in spellings and place not in ids)
    ]
    unk_id = None if unknown is None else kept.index(unknown)
    return {**model, "vocab": [pieces[place] for place in kept], "unk_id": unk_id}
