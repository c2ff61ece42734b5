"""Tags that a base never met begin anew: among the rows that it has met, and nothing else moves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from pasta_lm.errors import UsageError
from pasta_lm.train.config import ModelConfig
from pasta_lm.train.learner import load_learner
from pasta_lm.train.sft import train_sft
from pasta_lm.train.tag_rows import ALIKE, begin_tags_anew
from tests.train.recipes import begin, sft

NUM_ROWS, SIZE = 40, 64
UNMET, TAGS = slice(25, 40), (30, 31, 33)


def model(*, is_tied: bool) -> PreTrainedModel:
    """Return a model whose last rows are alike, as those of tokens that no text had."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=NUM_ROWS,
        hidden_size=SIZE,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        tie_word_embeddings=is_tied,
    )
    built: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    for matrix in {id(m): m for m in matrices(built)}.values():
        matrix.data[:] = torch.randn(NUM_ROWS, SIZE) + 0.2
        matrix.data[UNMET] = torch.randn(SIZE) + 0.01 * torch.randn(15, SIZE)
    return built


def matrices(of: PreTrainedModel) -> list[torch.Tensor]:
    found = [of.get_input_embeddings(), of.get_output_embeddings()]
    return [module.weight for module in found]  # type: ignore[union-attr, misc]


def likeness(rows: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    return torch.cosine_similarity(rows, row[None], dim=1)


@pytest.mark.parametrize("is_tied", [True, False])
def test_new_rows_are_drawn_as_those_that_were_met_are_spread(is_tied: bool) -> None:
    built = model(is_tied=is_tied)
    before = [matrix.detach().clone() for matrix in matrices(built)]
    begin_tags_anew(built, TAGS)
    others = [row for row in range(NUM_ROWS) if row not in TAGS]
    for old, matrix in zip(before, matrices(built), strict=True):
        new = matrix.detach()
        assert torch.equal(new[others], old[others])
        assert likeness(old[list(TAGS)], old[35]).min() > ALIKE
        for tag in TAGS:
            assert likeness(old[UNMET], new[tag]).abs().max() < 0.5
            rest = [other for other in TAGS if other != tag]
            assert likeness(new[rest], new[tag]).max() < 0.5
            assert 0.7 < new[tag].std() / old[:25].std() < 1.4


def test_every_finetuning_of_a_base_begins_with_the_same_rows() -> None:
    first, second = (model(is_tied=True) for _ in range(2))
    begin_tags_anew(first, TAGS)
    torch.manual_seed(99)
    begin_tags_anew(second, reversed(TAGS))
    assert torch.equal(matrices(first)[0], matrices(second)[0])


def test_rows_that_are_all_alike_are_refused() -> None:
    built = model(is_tied=True)
    matrices(built)[0].data[:] = torch.randn(SIZE)
    with pytest.raises(UsageError, match=r"model\.new_tags"):
        begin_tags_anew(built, TAGS)


@pytest.mark.parametrize("is_new", [True, False])
def test_a_recipe_says_whether_the_tags_of_its_base_begin_anew(
    tmp_path: Path, is_new: bool
) -> None:
    base = train_sft(sft(begin(tmp_path), tmp_path / "out", steps=1))
    ids = sorted(json.loads((base / "pasta_config.json").read_text())["piece_ids"].values())
    plain = matrices(load_learner(ModelConfig(base=str(base))).model)[0]
    found = matrices(load_learner(ModelConfig(base=str(base), new_tags=is_new)).model)[0]
    moved = (plain != found).any(dim=1).nonzero()[:, 0].tolist()
    assert moved == (ids if is_new else [])
