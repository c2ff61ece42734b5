"""Make a model with random weights, for replay, benchmarks and tests of speed.

They are never saved, and every figure made with them says ``random-weights``.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from pasta_lm.engines.local.loading import LoadedModel
from pasta_lm.engines.passes.row_reader import exact_reader
from pasta_lm.errors import InputError, ModelNotFoundError
from pasta_lm.interpreter.trace import Kind
from pasta_lm.journal import Row, parse_unique, read_lines
from pasta_lm.language.tags import PIECES
from pasta_lm.models.checkpoint import read_tokenizer
from pasta_lm.models.generation import eos_ids
from pasta_lm.models.load import DTYPES as DTYPES
from pasta_lm.models.pieces import tag_pieces
from pasta_lm.models.vocabulary import Vocabulary

END_OF_TEXT = "<|end|>"


def train_tokenizer(texts: Iterable[str], num_pieces: int = 4000) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE on texts: ``num_pieces`` with the 256 bytes, without tag pieces."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=num_pieces, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[END_OF_TEXT], show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END_OF_TEXT)


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    if not (folder / "tokenizer.json").is_file():
        raise ModelNotFoundError(f"no tokenizer at {folder}: there is no tokenizer.json")
    return read_tokenizer(folder)


def random_model(
    config: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast, *, name: str,
    dtype: torch.dtype = torch.float32, device: str = "cpu", seed: int = 0,
) -> LoadedModel:  # fmt: skip
    """Build a model with random weights around a tokenizer, which gets the tag pieces.

    The vocabulary of the configuration grows to that of the tokenizer if it is smaller. On a GPU
    the weights are drawn there, in ``dtype``: billions in a second, other numbers than on a CPU.
    """
    tokenizer.add_tokens([AddedToken(p, special=True, normalized=False) for p in PIECES])
    config.vocab_size = max(config.vocab_size, len(tokenizer))
    config.eos_token_id = tokenizer.eos_token_id
    # The caller's random numbers stay as they are; billions of weights are fast to draw on a GPU.
    with torch.random.fork_rng(devices=[]), torch.device(device) as chosen:
        torch.manual_seed(seed)
        model: PreTrainedModel = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.float32 if chosen.type == "cpu" else dtype,
            attn_implementation="eager", trust_remote_code=False,
        ).eval()  # fmt: skip
    reader = exact_reader(model)
    model.to(dtype)  # type: ignore[arg-type]  # in place; it is there already
    vocabulary, ends = Vocabulary(tokenizer, tag_pieces(tokenizer)), eos_ids(model, tokenizer)
    return LoadedModel(model, vocabulary, name, ends, kind=Kind.RANDOM_WEIGHTS, reader=reader)


def read_architecture(path: Path) -> PreTrainedConfig:
    try:
        data: Row = parse_unique("".join(read_lines(path)))
        return transformers.AutoConfig.for_model(**data)
    except (TypeError, ValueError, KeyError) as exc:
        hint = 'it needs a "model_type" that transformers knows, such as "llama"'
        raise InputError(f"{path} is no model configuration: {exc}", hint=hint) from exc
