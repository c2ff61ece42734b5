"""Rewrite a tokenizer so that chosen tokens do not exist in it.

A token can be matched in two ways: as an added token, which is simply not added again, and as a
word of the model's own vocabulary (by merges, by ``ignore_merges``, by a Unigram model). The
second way is closed here. Works on what ``tokenizer.json`` holds and knows nothing of tags.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

Json = dict[str, Any]

_STAGES = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers"}
"""Keys of a tokenizer's stages, and the key under which a composite stage lists its parts."""


class RebuiltModel(NamedTuple):
    """A model without some of its tokens; the others are numbered without gaps."""

    model: Json
    original_ids: list[int]  # by the new id


def stages(tokenizer: Json) -> Json:
    """Return a tokenizer without its tokens: the stages around its model."""
    # A truncation or padding that someone left switched on is no part of encoding.
    nothing: Json = {"added_tokens": [], "truncation": None, "padding": None}
    return {**tokenizer, **nothing, "model": {"type": "BPE", "vocab": {}, "merges": []}}


def as_middle_of_text(tokenizer: Json) -> Json:
    """Return a tokenizer that adds nothing to a text and strips nothing from its ends."""
    changed: Json = {"post_processor": None}
    for key, parts in _STAGES.items():
        kept = [_without_prefix(stage) for stage in _flat(tokenizer[key], parts)]
        kept = [stage for stage in kept if stage["type"] not in {"Prepend", "Strip"}]
        changed[key] = {"type": "Sequence", parts: kept} if kept else None
    return tokenizer | changed


def decoder_types(tokenizer: Json) -> frozenset[str]:
    """Return the types of the decoders that a tokenizer chains."""
    return frozenset(stage["type"] for stage in _flat(tokenizer["decoder"], "decoders"))


def without_tokens(
    model: Json, spellings: Collection[str], ids: Collection[int]
) -> RebuiltModel | None:
    """Return a model that never makes these tokens, or None if it already makes none of them.

    Tokens are named by content or by id; byte-level models spell content in their own alphabet.
    """
    rebuild = _unigram_without if model["type"] == "Unigram" else _words_without
    return rebuild(model, set(spellings), set(ids))


def _words_without(model: Json, spellings: set[str], ids: set[int]) -> RebuiltModel | None:
    """Rebuild a model that has a table of words: BPE, WordPiece, WordLevel."""
    vocab: dict[str, int] = model["vocab"]
    gone = {word for word, token_id in vocab.items() if word in spellings or token_id in ids}
    # The unknown token must stay: without it, a character that has no token is an error.
    gone.discard(model.get("unk_token") or "")
    gone &= _reachable(model)
    has_gaps = len(vocab) <= max(vocab.values(), default=-1)
    if not gone and not has_gaps:
        return None
    words = sorted(vocab.keys() - gone, key=vocab.__getitem__)
    changed: Json = {"vocab": {word: place for place, word in enumerate(words)}}
    if "merges" in model:
        made = zip(model["merges"], _merged(model), strict=True)
        changed["merges"] = [pair for pair, word in made if gone.isdisjoint((*pair, word))]
    return RebuiltModel(model | changed, [vocab[word] for word in words])


def _reachable(model: Json) -> set[str]:
    """Return the words that a model can come to: a BPE often has no way to its special tokens."""
    if model["type"] != "BPE" or model.get("ignore_merges"):
        return set(model["vocab"])
    return {word for word in model["vocab"] if len(word) == 1}.union(_merged(model))


def _merged(model: Json) -> Iterator[str]:
    prefix = len(model.get("continuing_subword_prefix") or "")
    return (left + right[prefix:] for left, right in model["merges"])


def _unigram_without(model: Json, spellings: set[str], ids: set[int]) -> RebuiltModel | None:
    """Rebuild a Unigram model, whose ids are places in its list."""
    pieces, unknown = model["vocab"], model["unk_id"]
    kept = [
        place
        for place, (piece, _) in enumerate(pieces)
        if place == unknown or (piece not in spellings and place not in ids)
    ]
    if len(kept) == len(pieces):
        return None
    unk_id = None if unknown is None else kept.index(unknown)
    vocab = [pieces[place] for place in kept]
    return RebuiltModel({**model, "vocab": vocab, "unk_id": unk_id}, kept)


def _flat(stage: Json | None, parts: str) -> Iterator[Json]:
    """Yield the stages of a possibly nested list, one after the other."""
    if stage is None:
        return
    if stage["type"] != "Sequence":
        yield stage
        return
    for part in stage[parts]:
        yield from _flat(part, parts)


def _without_prefix(stage: Json) -> Json:
    if stage["type"] == "Metaspace":
        return {**stage, "prepend_scheme": "never"}
    if stage["type"] == "ByteLevel":
        return {**stage, "add_prefix_space": False}
    return stage
