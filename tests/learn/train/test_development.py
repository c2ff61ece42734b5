"""Stage two on decisions: structure sampled, a bound on drift, and rounds that are not kept."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pasta_lm.errors import InputError, UsageError
from pasta_lm.journal import read_rows
from pasta_lm.learn.train import development
from pasta_lm.learn.train.development import Check
from pasta_lm.learn.train.preference import check_same_recipe, train_preference
from pasta_lm.learn.train.preference_config import (
    DevelopmentConfig,
    LossConfig,
    PairsConfig,
    PreferenceConfig,
    RecordsConfig,
    ScoreConfig,
)
from pasta_lm.learn.train.rounds import Round
from tests.learn.train.preferences import recipe, rows, save_tiny

SCORE = ScoreConfig(quality_weight=1.0, efficiency="log_least", quality="advantage")
LOSS = LossConfig(kind="ipo", beta=0.1, on="decisions", kl_weight=1.0)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> PreferenceConfig:
    """Return a recipe of stage two on decisions that was carried out."""
    folder = tmp_path_factory.mktemp("decisions")
    base, baseline = save_tiny(folder / "base"), save_tiny(folder / "baseline", seed=1)
    plain = recipe(base, baseline, folder / "out", num_prompts=12, steps=3)
    found = replace(
        plain,
        rollouts=replace(plain.rollouts, sampled="structure"),
        score=SCORE,
        loss=LOSS,
        development=DevelopmentConfig(num_prompts=6),
    )
    train_preference(found)
    return found


def result(config: PreferenceConfig, number: int) -> dict[str, Any]:
    path = Path(config.train.out) / f"round-{number}" / "development.json"
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return found


def test_samples_differ_in_structure_and_their_text_is_greedy(config: PreferenceConfig) -> None:
    found = read_rows(Path(config.train.out) / "round-1" / "rollouts.jsonl")
    assert all(row["sampled"]["sampled"] == "structure" for row in found)
    programs = [{one["program"] for one in row["samples"]} for row in found]
    assert any(len(group) > 1 for group in programs)
    for group in programs:
        # Up to its first tag each sample is a piece of the same greedy text.
        heads = sorted((one.partition("<")[0].rstrip() for one in group), key=len)
        assert all(heads[-1].startswith(head) for head in heads)


def test_each_step_logs_the_drift_which_begins_at_none(config: PreferenceConfig) -> None:
    drifts = [row["drift"] for row in rows(Path(config.train.out), 1) if "drift" in row]
    assert len(drifts) == 3
    assert drifts[0] == pytest.approx(0, abs=1e-6)
    assert drifts[1] > 0


def test_what_a_round_did_to_coverage_syncs_and_repetition_is_logged(
    config: PreferenceConfig,
) -> None:
    found = result(config, 1)
    (logged,) = [row for row in rows(Path(config.train.out), 1) if "development" in row]
    assert logged["development"] == found
    watched = {"score", "well_formed", "coverage", "syncs", "repetition", "length_ratio"}
    for side in ("before", "after"):
        assert watched <= found[side].keys()
    assert found["gain"] == pytest.approx(found["after"]["score"] - found["before"]["score"])
    assert found["is_kept"] is (found["gain"] >= 0)


def test_development_prompts_are_in_no_round(config: PreferenceConfig) -> None:
    checked = {one.id for one in Check(Round(config, 1, "m")).prompts()}
    assert len(checked) == 6
    for number in (1, 2):
        assert not checked & {one.id for one in Round(config, number, "m").prompts()}


def test_records_for_development_are_held_back_from_the_rounds(
    config: PreferenceConfig, tmp_path: Path
) -> None:
    lines = [{"id": str(n), "prompt": f"Say {n}.", "response": "Yes."} for n in range(10)]
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = PairsConfig(records=RecordsConfig(file=str(tmp_path / "r.jsonl")))
    judge = replace(config.judge, kind="likelihood", model="m")
    held = replace(config, data=data, judge=judge, development=DevelopmentConfig(num_prompts=4))
    shares = [{one.id for one in Round(held, number, "m").prompts()} for number in (1, 2)]
    kept = {one.id for one in Check(Round(held, 1, "m")).prompts()}
    assert [len(one) for one in (*shares, kept)] == [3, 3, 4]
    assert len(shares[0] | shares[1] | kept) == 10
    many = replace(held, development=DevelopmentConfig(num_prompts=9))
    with pytest.raises(InputError, match="too few for 2 rounds of 1 and 9"):
        Round(many, 1, "m").prompts()


@pytest.mark.parametrize("gains", [(-1.0, 1.0), (1.0, -1.0), (-1.0, -1.0)])
def test_a_round_that_loses_is_not_kept_and_the_next_begins_with_the_kept_model(
    config: PreferenceConfig,
    gains: tuple[float, float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def compare(self: Check, *_: Any) -> dict[str, Any]:
        gain = gains[self.round.number - 1]
        figures = dict.fromkeys(development._SHOWN, 0.0)
        return {
            **{"id": "x", "num_prompts": 1, "is_kept": gain >= 0, "gain": gain},
            **{"before": figures, "after": figures},
        }

    monkeypatch.setattr(Check, "_compare", compare)
    out = tmp_path / "out"
    mine = replace(config, train=replace(config.train, out=str(out), steps=1))
    folder = train_preference(mine)
    kept = [number for number, gain in enumerate(gains, start=1) if gain >= 0]
    expected = str(out / f"round-{kept[-1]}" / "model") if kept else mine.model.base
    assert str(folder) == expected
    sampled = read_rows(out / "round-2" / "rollouts.jsonl")[0]["sampled"]["model"]
    assert sampled == ("round-1/model" if 1 in kept else mine.model.base)
    assert train_preference(mine, resume=True) == folder


def test_a_recipe_of_an_earlier_version_goes_on(config: PreferenceConfig, tmp_path: Path) -> None:
    plain = recipe("base", "baseline", tmp_path / "out")
    check_same_recipe(plain)
    path = tmp_path / "out" / "recipe.json"
    stored = json.loads(path.read_text("utf-8"))
    for table, keys in {
        "rollouts": ("sampled",),
        "score": ("quality", "max_length_change"),
        "loss": ("on", "kl_weight", "kl_bound"),
    }.items():
        for key in keys:
            del stored[table][key]
    del stored["development"]
    path.write_text(json.dumps(stored))
    (tmp_path / "out" / "round-1").mkdir()
    (tmp_path / "out" / "round-1" / "log.jsonl").touch()
    check_same_recipe(plain)
    with pytest.raises(UsageError, match=r"loss\.on = 'answer', not 'decisions'"):
        check_same_recipe(replace(plain, loss=LossConfig(beta=0.01, on="decisions")))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kl_weight": -1.0}, "at least 0"),
        ({"kl_bound": 0.1}, "kl_weight is 0"),
    ],
)
def test_a_bound_without_a_weight_is_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        LossConfig(**settings)
