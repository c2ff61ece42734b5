"""Text to token ids by copies of a tokenizer without the tags, and token ids to text.

A token can be matched in two ways: as an added token, which is simply not added again, and as a
word of the model's own vocabulary (by merges, by ``ignore_merges``, by a Unigram model). The
second way is closed by rebuilding the model. Works on what ``tokenizer.json`` holds.

Back to text each token is a fixed run of bytes in the middle of a text: a tokenizer's own decoder
would drop a space at the beginning. No character is ever split.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import Model

from pasta_lm.errors import RequestError
from pasta_lm.language.tags import PIECES

Json = dict[str, Any]

# Keys of a tokenizer's stages, and the key under which a composite stage lists its parts.
_STAGES = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers"}
_NO_PREFIX: dict[str, Json] = {
    "Metaspace": {"prepend_scheme": "never"},
    "ByteLevel": {"add_prefix_space": False},
}


class TagFreeEncoder:
    """A copy of a tokenizer that gives the ids of the original."""

    def __init__(
        self, stages: Json, model: Model, ids: Mapping[int, int], added: Mapping[int, AddedToken]
    ) -> None:
        self._copy = Tokenizer.from_str(json.dumps(stages))
        self._copy.model = model
        self._copy.add_tokens(list(added.values()))
        # The copy numbers added tokens as it likes; the model's tokens have no gaps between them.
        original = {token.content: token_id for token_id, token in added.items()}
        copied = self._copy.get_added_tokens_decoder()
        self._original_ids = {**ids, **{i: original[t.content] for i, t in copied.items()}}

    def encode(self, text: str) -> list[int]:
        try:  # other threads run meanwhile, which they could not beside ``encode``
            (encoding,) = self._copy.encode_batch_fast([text], add_special_tokens=False)
        except TypeError as exc:
            raise RequestError("a text holds half a surrogate pair: it is no Unicode") from exc
        return [self._original_ids[token_id] for token_id in encoding.ids]

    def prefix(self) -> tuple[int, ...]:
        """Return the ids before any text, which are the same in the copy."""
        encoding = self._copy.encode("a", add_special_tokens=True)
        return tuple(encoding.ids[: (*encoding.special_tokens_mask, 0).index(0)])


def tag_free_copies(
    backend: Tokenizer, tag_ids: frozenset[int], special_ids: frozenset[int]
) -> tuple[TagFreeEncoder, TagFreeEncoder, frozenset[str]]:
    """Return two copies of a tokenizer that encode, and the types of the decoders that it chains.

    The first is without the tags, for prompts. The second is without any special token and without
    what is done at a text's ends. They share the tokenizer's model, or one rebuilt without tags.
    """
    data: Json = json.loads(backend.to_str())
    added = backend.get_added_tokens_decoder()
    special = {i: token for i, token in added.items() if i in special_ids - tag_ids}
    ordinary = {i: token for i, token in added.items() if i not in tag_ids | special_ids}
    # A truncation or padding that someone left switched on is no part of encoding.
    stages = {**data, "added_tokens": [], "truncation": None, "padding": None}
    stages["model"] = {"type": "BPE", "vocab": {}, "merges": []}
    spellings = {*PIECES, *(added[token_id].content for token_id in special_ids)}
    rebuild = _unigram_without if data["model"]["type"] == "Unigram" else _words_without
    rebuilt = rebuild(data["model"], spellings, tag_ids)
    if rebuilt is None:
        model, kept = backend.model, list(range(backend.get_vocab_size(with_added_tokens=False)))
    else:
        alone, kept = json.dumps({**stages, "model": rebuilt[0]}, ensure_ascii=False), rebuilt[1]
        model = Tokenizer.from_str(alone).model
    # Without the tags' own ids a mistake above would be a KeyError, never a fork.
    ids = {i: original for i, original in enumerate(kept) if original not in tag_ids}
    return (
        TagFreeEncoder(stages, model, ids, special | ordinary),
        TagFreeEncoder(_as_middle_of_text(stages), model, ids, ordinary),
        frozenset(stage["type"] for stage in _flat(data["decoder"], "decoders")),
    )


def _as_middle_of_text(tokenizer: Json) -> Json:
    changed: Json = {"post_processor": None}
    for key, parts in _STAGES.items():
        stages = _flat(tokenizer[key], parts)
        kept = [stage for stage in stages if stage["type"] not in {"Prepend", "Strip"}]
        kept = [stage | _NO_PREFIX.get(stage["type"], {}) for stage in kept]
        changed[key] = {"type": "Sequence", parts: kept} if kept else None
    return tokenizer | changed


def _flat(stage: Json | None, parts: str) -> Iterator[Json]:
    if stage is not None and stage["type"] == "Sequence":
        for part in stage[parts]:
            yield from _flat(part, parts)
    elif stage is not None:
        yield stage


# A model without some of its tokens, and the original id of each token that is left; None: it makes
# none of them. They are named by content or id: byte-level models spell content in an alphabet.
Rebuilt = tuple[Json, list[int]] | None


def _words_without(model: Json, spellings: set[str], ids: frozenset[int]) -> Rebuilt:
    vocab: dict[str, int] = model["vocab"]
    gone = {word for word, token_id in vocab.items() if word in spellings or token_id in ids}
    # The unknown token must stay: without it, a character that has no token is an error.
    gone.discard(model.get("unk_token") or "")
    gone &= _reachable(model)
    has_gaps = len(vocab) <= max(vocab.values(), default=-1)
    if not gone and not has_gaps:
        return None
    words = sorted(vocab.keys() - gone, key=vocab.__getitem__)
    changed: Json = {"vocab": {word: index for index, word in enumerate(words)}}
    if "merges" in model:
        made = zip(model["merges"], _merged(model), strict=True)
        changed["merges"] = [pair for pair, word in made if gone.isdisjoint((*pair, word))]
    return model | changed, [vocab[word] for word in words]


def _reachable(model: Json) -> set[str]:
    """Return the words that a model can come to: a BPE often has no way to its special tokens."""
    if model["type"] != "BPE" or model.get("ignore_merges"):
        return set(model["vocab"])
    return {word for word in model["vocab"] if len(word) == 1}.union(_merged(model))


def _merged(model: Json) -> Iterator[str]:
    prefix = len(model.get("continuing_subword_prefix") or "")
    return (left + right[prefix:] for left, right in model["merges"])


def _unigram_without(model: Json, spellings: set[str], ids: frozenset[int]) -> Rebuilt:
    pieces, unknown = model["vocab"], model["unk_id"]
    gone = {index for index, (piece, _) in enumerate(pieces) if piece in spellings or index in ids}
    gone.discard(unknown)
    if not gone:
        return None
    kept = [index for index in range(len(pieces)) if index not in gone]
    unk_id = None if unknown is None else kept.index(unknown)
    return {**model, "vocab": [pieces[index] for index in kept], "unk_id": unk_id}, kept


# Token ids to text

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
# The characters in which byte-level tokenizers spell bytes (GPT-2's table).
_CHARACTERS = [*map(chr, _PRINTABLE), *map(chr, range(256, 256 + len(_OTHERS)))]
_BYTE_OF_CHARACTER = dict(zip(_CHARACTERS, _PRINTABLE + _OTHERS, strict=True))


class TokenBytes(dict[int, bytes]):
    """The bytes of each token by its id, worked out when they are first needed.

    ``silent`` tokens stand for no text: the tags and special tokens. ``anchor`` is a few ordinary
    tokens; text decoded after them is in the middle of a text.
    """

    def __init__(
        self, backend: Tokenizer, decoders: frozenset[str], *, silent: frozenset[int],
        anchor: list[int],
    ) -> None:  # fmt: skip
        super().__init__()
        self._silent, self._backend, self._decoders = silent, backend, decoders
        self._anchor, self._anchor_text = anchor, backend.decode(anchor)
        model, added = backend.model, backend.get_added_tokens_decoder()
        # Those that are no words of the model are matched in the text itself.
        self._added = {i: t.content for i, t in added.items() if model.id_to_token(i) is None}

    def __missing__(self, token_id: int) -> bytes:
        return self.setdefault(token_id, self._work_out(token_id))

    def _work_out(self, token_id: int) -> bytes:
        spelling = self._backend.id_to_token(token_id)
        if spelling is None or token_id in self._silent:
            return b""
        if token_id in self._added:
            return self._added[token_id].encode()
        if "ByteLevel" in self._decoders:
            try:
                return bytes([_BYTE_OF_CHARACTER[character] for character in spelling])
            except KeyError:  # a token that is special elsewhere may have no alphabet
                return spelling.encode()
        byte = _BYTE_TOKEN.fullmatch(spelling) if "ByteFallback" in self._decoders else None
        if byte is not None:
            return bytes.fromhex(byte[1])
        return self._backend.decode([*self._anchor, token_id])[len(self._anchor_text) :].encode()


class TextStream:
    """The text of a stretch between two tags; bytes that become no character come out as U+FFFD."""

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token_id: int) -> str:
        return self._decoder.decode(self._bytes[token_id])

    def close(self) -> str:
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text
