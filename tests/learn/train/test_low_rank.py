"""The difference of two models, cut to a low rank."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from pasta_lm.errors import ModelError
from pasta_lm.learn.train.adapters import cut_difference
from pasta_lm.learn.train.config import ModelConfig
from pasta_lm.learn.train.learner import load_learner
from pasta_lm.learn.train.sft import train_sft
from pasta_lm.models.adapter import merge_adapter
from tests.learn.train.recipes import begin, sft

RANK = 4


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def folders(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """Return a model folder, and that of the same model with all weights trained further."""
    folder = tmp_path_factory.mktemp("models")
    config = begin(folder)
    assert config.random is not None
    path = Path(config.random.architecture)
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"tie_word_embeddings": request.param})
    )
    base = train_sft(sft(config, folder / "base", steps=1))
    return base, train_sft(sft(ModelConfig(base=str(base)), folder / "taught", steps=4))


def models(folders: tuple[Path, Path]) -> tuple[PreTrainedModel, PreTrainedModel, dict[str, int]]:
    base, taught = (load_learner(ModelConfig(base=str(folder))) for folder in folders)
    return base.model, taught.model, dict(base.vocabulary.piece_ids)


def test_the_merged_cut_is_the_best_approximation_of_its_rank(folders: tuple[Path, Path]) -> None:
    base, taught, piece_ids = models(folders)
    cut = cut_difference(base, taught, piece_ids, RANK)
    merged = copy.deepcopy(base)
    merge_adapter(merged, cut)
    before, after, found = (dict(m.named_parameters()) for m in (base, taught, merged))
    for name, weight in before.items():
        change, wanted = (found[name] - weight).detach(), (after[name] - weight).detach()
        if "_proj" in name:
            values = torch.linalg.svdvals(wanted)
            assert torch.linalg.svdvals(wanted - change)[0] == pytest.approx(
                float(values[RANK]), rel=1e-3
            )
        elif "embed" in name or "lm_head" in name:
            ids = sorted(piece_ids.values())
            assert torch.allclose(change[ids], wanted[ids], atol=1e-6)
            change[ids] = 0
            assert not change.any()  # rows of old tokens stay the base's
        else:
            assert not change.any()


def test_the_cut_of_full_rank_is_the_whole_difference_of_the_layers(
    folders: tuple[Path, Path],
) -> None:
    base, taught, piece_ids = models(folders)
    cut = cut_difference(base, taught, piece_ids, 32)
    merge_adapter(base, cut)
    whole = dict(taught.named_parameters())
    for name, weight in base.named_parameters():
        if "_proj" in name:
            assert torch.allclose(weight, whole[name], atol=1e-5), name


def test_other_models_and_ranks_that_are_too_high_are_refused(folders: tuple[Path, Path]) -> None:
    base, taught, piece_ids = models(folders)
    with pytest.raises(ModelError, match="rank 33 is too high"):
        cut_difference(base, taught, piece_ids, 33)
    taught.resize_token_embeddings(900)
    with pytest.raises(ModelError, match="have other weights"):
        cut_difference(base, taught, piece_ids, RANK)
