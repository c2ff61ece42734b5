"""Stage two on a file of records, and with adapters."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pasta_lm.errors import InputError
from pasta_lm.learn.data.annotated import read_records, write_records
from pasta_lm.learn.data.preferences import write_pairs
from pasta_lm.learn.train.config import (
    LoraConfig,
    PairsConfig,
    RecordsConfig,
    RolloutsConfig,
    StartConfig,
)
from pasta_lm.learn.train.preference import Prompts, prompts_of, train_preference
from tests.learn.train.preferences import margins, pair, recipe, save_tiny
from tests.learn.train.recipes import records

NUM_RECORDS = 9


@pytest.fixture
def config(tmp_path: Path) -> RecordsConfig:
    write_records(tmp_path / "records.jsonl", records(NUM_RECORDS))
    return RecordsConfig(file=str(tmp_path / "records.jsonl"))


def shares(config: RecordsConfig) -> Sequence[Prompts]:
    whole = recipe("base", "baseline", Path("out"), rounds=2)
    return prompts_of(replace(whole, data=PairsConfig(records=config)))


@pytest.mark.parametrize(("num_prompts", "expected"), [(None, NUM_RECORDS // 2), (3, 3)])
def test_each_round_has_its_own_reproducible_prompts(
    config: RecordsConfig, num_prompts: int | None, expected: int
) -> None:
    share = replace(config, num_prompts=num_prompts)
    first, second = shares(share)
    assert len(first) == len(second) == expected
    assert not {one.id for one in first} & {one.id for one in second}
    assert shares(share)[0] == first
    originals = {one.id: one for one in read_records(Path(share.file))}
    for one in first:
        assert one.prompt == originals[one.id].prompt
        assert one.reference == originals[one.id].document.plain_text


def test_a_file_with_too_few_records_is_refused(config: RecordsConfig) -> None:
    with pytest.raises(InputError, match="has 9 records, too few for 2 rounds of 5"):
        shares(replace(config, num_prompts=5))


def test_preference_training_with_adapters_changes_only_the_adapters(tmp_path: Path) -> None:
    base = save_tiny(tmp_path / "base")
    names = ("one", "two", "three")
    pairs = [pair(name, f"Say {name}.", f"Nothing of {name} at all.") for name in names]
    write_pairs(tmp_path / "pairs.jsonl", pairs)
    plain = recipe(base, base, tmp_path / "out", rounds=1, steps=10, learning_rate=3e-2)
    config = replace(
        plain,
        model=StartConfig(base=base),
        data=PairsConfig(file=str(tmp_path / "pairs.jsonl")),
        rollouts=RolloutsConfig(samples=plain.rollouts.samples),
        score=None,
        lora=LoraConfig(rank=2, targets=("v_proj",)),
    )
    folder = train_preference(config)
    before = load_file(Path(base) / "model.safetensors")
    after = load_file(folder / "model.safetensors")
    rows = sorted(json.loads((folder / "pasta_config.json").read_text())["piece_ids"].values())
    for name, weight in before.items():
        moved = after[name] - weight
        if "v_proj" in name:
            assert 0 < torch.linalg.matrix_rank(moved, rtol=1e-4) <= 2
        elif "embed_tokens" in name or "lm_head" in name:
            assert {*moved.abs().sum(dim=1).nonzero()[:, 0].tolist()} <= {*rows}
        else:
            assert torch.equal(after[name], weight), name
    found = margins(tmp_path / "out", 1)
    # The reference is what the adapters began beside: the first margin is none.
    assert found[1] == [pytest.approx(0, abs=1e-4)]
    assert found[10][0] > 0.1
