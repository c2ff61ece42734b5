"""Random bases and adapters: those of this project, and those that peft itself saves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peft
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from pasta_lm.interpreter.limits import Limits
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.learn.train.learner import with_tag_rows
from pasta_lm.models.adapter import Adapter, BaseReference, reference_to, save_adapter
from pasta_lm.models.folder import PastaConfig
from pasta_lm.models.load import load_pretrained
from pasta_lm.models.pieces import add_pieces
from tests.architectures import ARCHITECTURES
from tests.small_tokenizers import FAMILIES

RANK = 4
TARGETS = ("q_proj", "down_proj")
LowRank = dict[str, tuple[Tensor, Tensor]]


def a_base(name: str = "llama", **changes: Any) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Return a random model and a tokenizer that have no tag pieces yet."""
    tokenizer = FAMILIES[ARCHITECTURES[name].tokenizer]()
    changes = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id} | changes
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(ARCHITECTURES[name].config(**changes))
    return model.eval(), tokenizer


def a_base_folder(folder: Path, name: str = "llama", **changes: Any) -> Path:
    for part in a_base(name, **changes):
        part.save_pretrained(folder)
    return folder


def low_rank_of(model: nn.Module, rank: int = RANK) -> LowRank:
    """Return random LoRA matrices for two kinds of layers, seen in the logits."""
    torch.manual_seed(1)
    return {
        name: (torch.randn(rank, module.in_features), torch.randn(module.out_features, rank) / 32)
        for name, module in model.named_modules()
        if name.endswith(TARGETS) and isinstance(module, nn.Linear)
    }


def config_of(piece_ids: Any) -> PastaConfig:
    """Return the record of a training with positions 'continue'."""
    return PastaConfig(piece_ids=piece_ids, positions=PositionStrategy.CONTINUE, limits=Limits())


def an_adapter(
    folder: Path, base: Path, reference: BaseReference | None = None, *, has_tags: bool = True
) -> Path:
    """Save an adapter of a base, with tag rows that are far from new ones."""
    pretrained = load_pretrained(base, dtype=torch.float32)
    model, tokenizer = pretrained.model, pretrained.tokenizer
    reference = reference or reference_to(model, tokenizer, path=str(base))
    low_rank = low_rank_of(model)
    adapter, config = Adapter(low_rank=low_rank, rows={}, token_ids={}), None
    if has_tags:
        config = config_of(add_pieces(model, tokenizer))
        with torch.no_grad():
            ids = list(config.piece_ids.values())
            for matrix in (model.get_input_embeddings(), model.get_output_embeddings()):
                matrix.weight[ids] = torch.randn(len(ids), matrix.weight.shape[1]) / 5
        adapter = with_tag_rows(low_rank, model, config.piece_ids)
    save_adapter(folder, adapter, base=reference, config=config)
    return folder


def a_peft_adapter(folder: Path, model: PreTrainedModel, **settings: Any) -> nn.Module:
    """Save an adapter with random weights by peft alone; return the adapted model."""
    defaults = {"task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": 6, "target_modules": [*TARGETS]}
    adapted = peft.get_peft_model(model, peft.LoraConfig(**(defaults | settings)))
    torch.manual_seed(2)
    for name, weight in adapted.named_parameters():
        if weight.requires_grad and "lora_A" not in name:
            weight.data += torch.randn_like(weight) / 8
    adapted.save_pretrained(str(folder), save_embedding_layers=False)
    return adapted.eval()


def logits_of(model: nn.Module, num_rows: int) -> Tensor:
    """Return the logits of an input that has every token."""
    ids = torch.arange(num_rows).flip(0)[None]
    with torch.inference_mode():
        logits: Tensor = model(input_ids=ids).logits
    return logits
