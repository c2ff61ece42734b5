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
        try:
            data = json.loads(str(self._value(key) or "{}"))
        except ValueError:
            data = None
        if not isinstance(data, dict):
            raise ModelError(f"{self._label}: {key} holds no JSON object", hint="export it again")
        return data

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
        """Return a tokenizer whose added tokens are spelled as in the file.

        transformers spells those with a space, or another character that is none of the 256 of
        byte-level tokens, in these, and adds none of them.
        """
        kinds = cast("list[int]", self._value(Keys.Tokenizer.TOKEN_TYPE) or [])
        added: dict[int, bool] = {TokenType.CONTROL: True, TokenType.USER_DEFINED: False}
        wrong = {
            i: AddedToken(token, special=added[kind], normalized=False)
            for i, (token, kind) in enumerate(zip(self._tokens, kinds, strict=False))
            if kind in added and backend.token_to_id(token) is None
        }
        if not wrong:
            return backend
        data = json.loads(backend.to_str())
        model = data["model"]
        made = {left + right for left, right in model.get("merges", ())}
        kept = {i: token for i, token in wrong.items() if backend.id_to_token(i) not in made}
        if isinstance(model["vocab"], dict):
            respelled = {i: token.content for i, token in kept.items()}
            model["vocab"] = {respelled.get(i, word): i for word, i in model["vocab"].items()}
            data["added_tokens"] = [t for t in data["added_tokens"] if t["id"] not in respelled]
            backend = Tokenizer.from_str(json.dumps(data, ensure_ascii=False))
            backend.add_tokens([*kept.values()])
        return backend

    def record(self, piece_ids: Mapping[str, int]) -> Row:
        """Return the record of the model's training, as in a folder; empty: it was not taught."""
        record = self._object(RECORD)
        if record:
            record = {"language_version": LANGUAGE_VERSION, "piece_ids": dict(piece_ids)} | record
            record["taught"] = record.pop("trained_strategy", PASTA)
        return record
