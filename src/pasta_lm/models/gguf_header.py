"""The facts of a GGUF file that transformers does not read: ends, added tokens, our own keys."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

import gguf
from gguf import Keys, TokenType
from tokenizers import AddedToken, Tokenizer
from transformers import GenerationConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from pasta_lm.errors import ModelError
from pasta_lm.journal import Row
from pasta_lm.models.folder import LANGUAGE_VERSION, PASTA

RECORD, GENERATION = "pasta.config", "pasta.generation_config"
"""Keys of files that this package writes: what was taught, empty if nothing, and the settings."""
IMPLIED = ("language_version", "piece_ids", "taught")  # left out of the record of a training
TOKENIZER = Keys.Tokenizer.HF_JSON
_ENDS = (Keys.Tokenizer.EOS_ID, Keys.Tokenizer.EOT_ID, Keys.Tokenizer.EOM_ID)
_TEMPLATE = f"{Keys.Tokenizer.CHAT_TEMPLATE}."  # before the name of a further template
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


class Header:
    """The keys of a GGUF file, checked; ``label`` names the file in errors."""

    def __init__(self, path: str, label: str) -> None:
        self._fields, self._label = gguf.GGUFReader(path).fields, label
        self._tokens = cast("list[str]", self._value(Keys.Tokenizer.LIST) or [])
        self.ends = sorted({end for key in _ENDS if (end := self._end(key)) is not None})
        settings = self._object(GENERATION)
        self.generation_config = GenerationConfig(**settings) if settings else None

    def _value(self, key: str) -> object:
        return self._fields[key].contents() if key in self._fields else None

    def _object(self, key: str) -> Row:
        return dict(json.loads(str(self._value(key) or "{}")))

    def _end(self, key: str) -> int | None:
        end = self._value(key)
        if end is not None and (type(end) is not int or not 0 <= end < len(self._tokens)):
            raise ModelError(f"{self._label}: {key} is {end!r}, which is no token of the file")
        return end

    def tokenizer(self, read: PreTrainedTokenizerBase) -> PreTrainedTokenizerFast:
        """Return the tokenizer that transformers read, with all that the file says of it."""
        assert isinstance(read, PreTrainedTokenizerFast)
        if RECORD in self._fields and TOKENIZER in self._fields:
            backend = Tokenizer.from_str(str(self._value(TOKENIZER)))
        else:
            backend = self._respelled(read.backend_tokenizer)
        template: object = read.chat_template
        if keys := [key for key in self._fields if key.startswith(_TEMPLATE)]:
            named = {key.removeprefix(_TEMPLATE): self._value(key) for key in keys}
            template = {"default": template} | named if template else named
        special = {name: getattr(read, name) for name in _SPECIAL}
        return PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=template, **special)

    def _respelled(self, backend: Tokenizer) -> Tokenizer:
        """Return a tokenizer with the file's added tokens that byte-level words cannot spell.

        transformers spells their spaces and the like in bytes, and adds none of them.
        """
        kinds = cast("list[int]", self._value(Keys.Tokenizer.TOKEN_TYPE) or [])
        data = json.loads(backend.to_str())
        model, is_special = data["model"], {TokenType.CONTROL: True, TokenType.USER_DEFINED: False}
        made = {left + right for left, right in model.get("merges", ())}
        added = {
            i: AddedToken(token, special=is_special[TokenType(kind)], normalized=False)
            for i, (token, kind) in enumerate(zip(self._tokens, kinds, strict=False))
            if kind in is_special and backend.token_to_id(token) is None
            if backend.id_to_token(i) not in made
        }
        if not added or not isinstance(model["vocab"], dict):
            return backend
        words = {i: token.content for i, token in added.items()}
        model["vocab"] = {words.get(i, word): i for word, i in model["vocab"].items()}
        data["added_tokens"] = [token for token in data["added_tokens"] if token["id"] not in words]
        backend = Tokenizer.from_str(json.dumps(data))
        backend.add_tokens([*added.values()])
        return backend

    def record(self, piece_ids: Mapping[str, int]) -> Row:
        """Return the record of the model's training, as in a folder; empty: it was not taught."""
        record = self._object(RECORD)
        if record:
            record = {"language_version": LANGUAGE_VERSION, "piece_ids": dict(piece_ids)} | record
            record["taught"] = record.pop("trained_strategy", PASTA)
        return record
