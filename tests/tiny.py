"""Tiny random models that fork at random."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.local.loading import LoadedModel
from pasta_lm.language.tags import PIECES
from pasta_lm.learn.data.annotated import read_records
from pasta_lm.learn.random_model import train_tokenizer
from pasta_lm.models.generation import eos_ids
from pasta_lm.models.pieces import tag_pieces
from pasta_lm.models.vocabulary import Vocabulary
from pasta_lm.strategies.model import Pasta
from tests.small_tokenizers import add_markers

STARTER = Path(__file__).parents[1] / "corpora" / "starter" / "starter.jsonl"
POOL_TOKENS = 8192
TAG_SCALE, END_SCALE = 7.0, 5.0  # random weights fork, and end, only if that is likelier than words
SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 2048, "initializer_range": 0.2,
}  # fmt: skip
CHAT = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer trained on a few answers of the starter corpus."""
    records = read_records(STARTER)[200:240]
    texts = (text for row in records for text in (row.prompt, row.document.plain_text))
    words = train_tokenizer(texts, 500)
    words.pad_token = words.eos_token
    words.chat_template = CHAT
    add_markers(words, PIECES)
    return words


def random_llama(
    words: PreTrainedTokenizerFast, seed: int = 0, **settings: object
) -> LlamaForCausalLM:
    sizes = {**SIZES, "vocab_size": len(words), "eos_token_id": words.eos_token_id, **settings}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(LlamaConfig(**sizes)).eval()


@cache
def tiny(name: str, *, seed: int = 0, has_tag_pieces: bool = True) -> Pasta:
    """Return a random model that has the tag pieces, or of which nobody says that it has."""
    words = tokenizer()
    pieces = tag_pieces(words)
    model = random_llama(words, seed)
    with torch.no_grad():
        output = model.get_output_embeddings().weight
        output[sorted(pieces.values())] *= TAG_SCALE if has_tag_pieces else 0
        output[words.eos_token_id] *= END_SCALE
    vocabulary = Vocabulary(words, pieces if has_tag_pieces else None)
    loaded = LoadedModel(model, vocabulary, name, eos_ids(model, words))
    return Pasta(TorchEngine(loaded, pool_tokens=POOL_TOKENS))
