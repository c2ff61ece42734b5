"""How attention begins: heads that look back where they should, and ones that find a repetition."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from pasta_lm.errors import UsageError
from pasta_lm.train.beginning import LOOK_BACK, SEEKERS, begin_with_heads

NUM_TOKENS = 60


def model(**changed: object) -> PreTrainedModel:
    torch.manual_seed(0)
    config = LlamaConfig(
        **{  # type: ignore[arg-type]
            "vocab_size": 300,
            "hidden_size": 160,
            "num_hidden_layers": 4,
            "num_attention_heads": 5,
            "num_key_value_heads": 5,
            "intermediate_size": 64,
            "attention_bias": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
            **changed,
        }
    )
    built: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    return built


@torch.no_grad()
def attention(of: PreTrainedModel, token_ids: Tensor) -> tuple[Tensor, ...]:
    """Return who attends to whom: for each layer float32 [heads, tokens, tokens]."""
    out = of(input_ids=token_ids[None], output_attentions=True)
    return tuple(layer[0] for layer in out.attentions)


@pytest.mark.parametrize(
    ("layer", "head", "offset"),
    [
        (layer, head, offset)
        for layer, offsets in LOOK_BACK.items()
        for head, offset in enumerate(offsets)
    ],
)
@pytest.mark.parametrize("theta", [1e4, 1e6])
def test_a_head_that_looks_back_sees_most_of_that_token(
    layer: int, head: int, offset: int, theta: float
) -> None:
    learner = model(rope_parameters={"rope_type": "default", "rope_theta": theta})
    begin_with_heads(learner)
    seen = attention(learner, torch.randperm(300)[:NUM_TOKENS])[layer][head]
    share = seen.diagonal(-offset)[8:]
    assert (share > 0.5).all()
    begun = attention(model(), torch.randperm(300)[:NUM_TOKENS])[layer][head]
    assert (begun.diagonal(-offset)[8:] < 0.2).all()  # at random it does not


def test_heads_that_seek_have_a_bent_to_the_token_after_the_same_one() -> None:
    learner, at_random = model(), model()
    begin_with_heads(learner)
    for layer, head in SEEKERS:
        assert bent(learner, layer, head) > 1.2
        assert bent(at_random, layer, head) < 1.1


def bent(of: PreTrainedModel, layer: int, head: int) -> float:
    """Return how much of its attention goes there, as a multiple of an even share."""
    half, found = NUM_TOKENS // 2, []
    for seed in range(20):
        once = torch.randperm(300, generator=torch.Generator().manual_seed(seed))[:half]
        seen = attention(of, torch.cat([once, once]))[layer][head]
        found += [float(seen[half + i, i + 1]) * (half + i + 1) for i in range(half - 1)]
    return sum(found) / len(found)


@pytest.mark.parametrize(
    "changed",
    [
        {"attention_bias": False},
        {"num_key_value_heads": 1},
        {"num_hidden_layers": 2},
        {"num_attention_heads": 2, "num_key_value_heads": 2},
    ],
)
def test_a_model_that_cannot_begin_so_is_refused(changed: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="looking_back"):
        begin_with_heads(model(**changed))
