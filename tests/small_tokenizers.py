"""Small tokenizers of the three families, trained on the spot; never a download.

Each is a transformers tokenizer, made anew by every call (a test may add tokens to it) from a
backend that is trained once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
TEXT = [
    "Here are three tips for a calm morning:\n\n1. **Wake up early** - it gives you time.\n",
    "2. Drink a glass of water, then stretch for 10 minutes.\n\n3. Write a short list; keep it!\n",
    "The quick brown fox jumps over the lazy dog, and the dog does not mind at all.",
    "def add(a, b):\n    return a + b\n\nprint(add(2, 3))  # 5, as one would expect\n",
    'He said: "parallel threads read the same prompt" & went on <quickly>, async or sync.',
    "Caf\u00e9, na\u00efve, d\u00e9j\u00e0 vu; 5\u20ac, 7\u20ac \u2013 \u2018fine\u2019.",
    "Blocks promise topics, tokens and lengths; promises are kept when the threads join again.",
] * 4


@cache
def _byte_level(*, ignore_merges: bool) -> str:
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<|begin|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    return _with_begin(tokenizer, "<|begin|>")


@cache
def _metaspace_bpe(*, prefix: bool) -> str:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    replace = normalizers.Replace(" ", "\u2581")
    prepend = [normalizers.Prepend("\u2581")] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*prepend, replace])
    if not prefix:
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    space = decoders.Replace("\u2581", " ")
    chain = [space, decoders.ByteFallback(), decoders.Fuse(), *strip]
    tokenizer.decoder = decoders.Sequence(chain)
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<unk>", "<s>", "</s>", *BYTES],
        limit_alphabet=80,
        max_token_length=12,
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    return _with_begin(_bytes_are_ordinary(tokenizer), "<s>")


@cache
def _unigram() -> str:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    trainer = trainers.UnigramTrainer(
        vocab_size=700,
        special_tokens=["<unk>", "<s>", "</s>", *BYTES],
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    data = json.loads(_bytes_are_ordinary(tokenizer).to_str())
    data["model"]["byte_fallback"] = True
    return _with_begin(Tokenizer.from_str(json.dumps(data)), "<s>")


def _bytes_are_ordinary(tokenizer: Tokenizer) -> Tokenizer:
    """Keep the tokens of bytes in the model alone, as SentencePiece does."""
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = [t for t in data["added_tokens"] if t["content"] not in BYTES]
    return Tokenizer.from_str(json.dumps(data))


def _with_begin(tokenizer: Tokenizer, begin: str) -> str:
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A", special_tokens=[(begin, tokenizer.token_to_id(begin))]
    )
    return tokenizer.to_str()


def _wrapped(text: str, **special: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(text), **special)


def byte_level() -> PreTrainedTokenizerFast:
    """Byte-level BPE, as GPT-2 has it."""
    text = _byte_level(ignore_merges=False)
    return _wrapped(text, bos_token="<|begin|>", eos_token="<|end|>")


def whole_word_byte_level() -> PreTrainedTokenizerFast:
    """Byte-level BPE that looks words up whole before it merges, as Llama 3 has it."""
    text = _byte_level(ignore_merges=True)
    return _wrapped(text, bos_token="<|begin|>", eos_token="<|end|>")


def llama_2_like() -> PreTrainedTokenizerFast:
    """BPE with byte fallback whose normaliser prepends a space and whose decoder drops one."""
    text = _metaspace_bpe(prefix=True)
    return _wrapped(text, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def gemma_like() -> PreTrainedTokenizerFast:
    """BPE with byte fallback that prepends nothing."""
    text = _metaspace_bpe(prefix=False)
    return _wrapped(text, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def unigram() -> PreTrainedTokenizerFast:
    """Unigram with byte fallback, with a space before every text."""
    return _wrapped(_unigram(), bos_token="<s>", eos_token="</s>", unk_token="<unk>")


FAMILIES: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "byte_level": byte_level,
    "whole_word_byte_level": whole_word_byte_level,
    "llama_2_like": llama_2_like,
    "gemma_like": gemma_like,
    "unigram": unigram,
}


def add_markers(
    tokenizer: PreTrainedTokenizerFast, pieces: tuple[str, ...], *, special: bool = True
) -> dict[str, int]:
    """Give a tokenizer the tag pieces and return their ids."""
    markers = [AddedToken(piece, special=special, normalized=False) for piece in pieces]
    tokenizer.add_tokens(markers, special_tokens=special)
    return {piece: tokenizer.convert_tokens_to_ids(piece) for piece in pieces}
