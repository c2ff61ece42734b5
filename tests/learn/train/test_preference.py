"""Stage two on a tiny model: margins, rounds, resumption and refused recipes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.errors import InputError, UsageError
from pasta_lm.journal import read_rows, write_rows
from pasta_lm.learn.data import preferences
from pasta_lm.learn.data.annotated import read_records, write_records
from pasta_lm.learn.data.preferences import PromptWithReference, Rollout, Sampling
from pasta_lm.learn.judge import Comparison
from pasta_lm.learn.train import learner, packs, preference
from pasta_lm.learn.train.config import (
    JudgeConfig,
    LoraConfig,
    PairsConfig,
    PreferenceConfig,
    RecordsConfig,
    StartConfig,
)
from pasta_lm.learn.train.preference import Prompts, Round, check_newest, prompts_of
from pasta_lm.models.folder import FILE_NAME
from pasta_lm.models.names import BUILTIN
from pasta_lm.strategies.model import Pasta, Servers
from tests.fakes.power_cut import power_cut_after
from tests.learn.train.recipes import (
    LongerWins,
    margins,
    pair,
    recipe,
    records,
    rows,
    save_tiny,
    train,
)
from tests.small_tokenizers import byte_level
from tests.stock_model import serving
from tests.tiny import tiny

ROOT = Path(__file__).parents[3]


class Models(NamedTuple):
    """Pasta-SFT and Baseline-SFT, as it were."""

    base: str
    baseline: str


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    folder = tmp_path_factory.mktemp("models")
    return Models(save_tiny(folder / "base"), save_tiny(folder / "baseline", seed=1))


@pytest.fixture(scope="module")
def whole(models: Models, tmp_path_factory: pytest.TempPathFactory) -> PreferenceConfig:
    config = recipe(*models, tmp_path_factory.mktemp("whole") / "out", save_steps=4)
    train(config)
    return config


def out(config: PreferenceConfig) -> Path:
    return Path(config.train.out)


def weights(config: PreferenceConfig, number: int) -> dict[str, Tensor]:
    return load_file(out(config) / f"round-{number}" / "model" / "model.safetensors")


def assert_same_run(config: PreferenceConfig, whole: PreferenceConfig) -> None:
    for number in (1, 2):
        pairs, expected = (
            read_rows(out(one) / f"round-{number}" / "pairs.jsonl") for one in (config, whole)
        )
        assert [row["id"] for row in pairs] == [row["id"] for row in expected]
        torch.testing.assert_close(
            weights(config, number), weights(whole, number), atol=1e-6, rtol=1e-5
        )
        for step, found in margins(out(config), number).items():
            assert found[-1] == pytest.approx(margins(out(whole), number)[step][0], abs=1e-4)


def test_the_margin_increases_in_both_rounds(whole: PreferenceConfig) -> None:
    found = {number: margins(out(whole), number) for number in (1, 2)}
    assert [*found[1]] == [*found[2]] == [*range(1, 11)]
    assert found[1][1] == [pytest.approx(0, abs=1e-3)]  # nobody has learned anything yet
    for each in found.values():
        steps = [margin for (margin,) in each.values()]
        assert fmean(steps[5:]) > fmean(steps[:5]) + 5


def test_a_round_writes_all_its_inputs_to_its_folder(whole: PreferenceConfig) -> None:
    for number in (1, 2):
        folder = out(whole) / f"round-{number}"
        assert {path.name for path in folder.iterdir()} == {
            *("rollouts.jsonl", "pairs.jsonl", "log.jsonl"),
            *("checkpoint-8", "checkpoint-10", "model"),
        }
        figures, *steps, _ = rows(out(whole), number)
        pairs = preferences.read_pairs(folder / "pairs.jsonl")
        assert figures["num_pairs"] == len(pairs) > 10
        assert [row["step"] for row in steps] == [*range(1, 11)]
        for row in steps:
            assert {"loss", "margin", "log_prob_chosen", "log_prob_rejected"} < row.keys()
            assert 0 <= row["share_right"] <= 1


def test_each_round_samples_the_newest_model_and_keeps_the_reference(
    whole: PreferenceConfig,
) -> None:
    first, second = (out(whole) / f"round-{number}" for number in (1, 2))
    sampled = [read_rows(folder / "rollouts.jsonl")[0]["sampled"] for folder in (first, second)]
    assert sampled[0]["model"] == whole.model.base
    assert sampled[1]["model"] == "round-1/model"
    # In round two the model is not its own reference any more.
    assert margins(out(whole), 2)[1][0] > 1
    last = Pasta.from_pretrained(
        out(whole) / "round-2" / "model", dtype="float32", pool_tokens=2048
    )
    assert last.has_tag_pieces


def never(*_: object, **__: object) -> Any:
    raise AssertionError("nothing was to be sampled")


def copy_rollouts(whole: PreferenceConfig, config: PreferenceConfig) -> None:
    file = Path("round-1", "rollouts.jsonl")
    (out(config) / file).parent.mkdir(parents=True)
    shutil.copyfile(out(whole) / file, out(config) / file)


def test_a_complete_journal_of_rollouts_is_scored_without_the_models(
    models: Models, whole: PreferenceConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pasta, "from_pretrained", never)
    pairs = {}
    for weight in (1.0, 8.0):
        config = recipe(*models, tmp_path / f"{weight}", rounds=1, quality_weight=weight, steps=1)
        copy_rollouts(whole, config)
        train(config)
        pairs[weight] = (out(config) / "round-1" / "pairs.jsonl").read_bytes()
    assert pairs[1.0] == (out(whole) / "round-1" / "pairs.jsonl").read_bytes()
    assert pairs[8.0] != pairs[1.0]


def of_file(models: Models, folder: Path, *pairs: Any, **train: Any) -> PreferenceConfig:
    preferences.write_pairs(folder / "mine.jsonl", pairs)
    config = recipe(*models, folder / "out", rounds=1, **train)
    return PreferenceConfig(
        model=StartConfig(base=models.base),
        data=PairsConfig(file=str(folder / "mine.jsonl"), max_tokens=60),
        train=config.train,
        loss=config.loss,
    )


FORKED = '<promise topic="tea" tokens="1"/><async>Tea.</async><sync/> So.'


def test_accumulated_packs_of_pairs_are_one_large_pack(models: Models, tmp_path: Path) -> None:
    brief = ({"role": "system", "content": "Be brief."},)
    pairs = [replace(pair("one", FORKED, "Tea."), turns=brief), pair("two", FORKED, "Yes.")]
    pairs += [pair("three", "Tea. " * 4, "Yes.")]
    steps = []
    for name, max_tokens, accumulate in (("whole", 500, 1), ("parts", 120, 2)):
        config = of_file(models, tmp_path / name, *pairs, steps=1, accumulate=accumulate)
        train(replace(config, data=replace(config.data, max_tokens=max_tokens)))
        steps.append(rows(out(config), 1)[0])
    for key in ("loss", "grad_norm", "log_prob_chosen"):
        assert steps[0][key] == pytest.approx(steps[1][key], rel=1e-4)


def test_pairs_that_cannot_be_trained_on_are_named(
    models: Models, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = pair("long", "Yes." * 40, "No.")
    train(of_file(models, tmp_path, long, pair("one", FORKED, "Tea."), steps=1))
    assert "1 of 2 pairs are too long" in capsys.readouterr().err
    with pytest.raises(InputError, match="none of 1 pairs can be trained on"):
        train(of_file(models, tmp_path / "again", long))


def test_a_base_that_was_not_taught_tags_is_refused(models: Models, tmp_path: Path) -> None:
    apar = save_tiny(tmp_path / "apar", trained_strategy="apar")
    tiny("untaught").engine.loaded.model.save_pretrained(tmp_path / "untaught")
    byte_level().save_pretrained(tmp_path / "untaught")
    for base, positions in ((apar, "continue"), (str(tmp_path / "untaught"), "predict")):
        with pytest.raises(UsageError, match="was not taught PASTA-LANG"):
            train(recipe(base, models.baseline, tmp_path / positions, positions=positions))


class LongerIsSure:
    """A judge that prefers the longer answer with a confidence of 0.8."""

    def compare(self, comparisons: Sequence[Comparison]) -> list[float]:
        return [0.8 * verdict_sign(one.first, one.second) for one in comparisons]


def verdict_sign(first: str, second: str) -> int:
    return (len(first) > len(second)) - (len(first) < len(second))


def read_by_hand(pairs: Path, verdicts: Path) -> None:
    """Judge as ``LongerIsSure`` does, and check that nothing tells whose an answer is."""
    found = read_rows(pairs)
    assert {tuple(row) for row in found} == {("id", "prompt", "first", "second")}
    orders = {(row["prompt"], row["first"], row["second"]) for row in found}
    assert orders == {(prompt, second, first) for prompt, first, second in orders}
    follow = zip(found, found[1:], strict=False)
    assert any(one["prompt"] != other["prompt"] for one, other in follow)
    signs = {row["id"]: verdict_sign(row["first"], row["second"]) for row in found}
    rows = [{"id": key, "winner": {1: 1, -1: 2, 0: 0}[sign]} for key, sign in signs.items()]
    write_rows(verdicts, [{**row, "confidence": 0.8} for row in rows])


def test_verdicts_of_a_file_train_the_model_that_a_judge_in_the_process_trains(
    models: Models, tmp_path: Path
) -> None:
    inside, plain = (recipe(*models, tmp_path / name, steps=3) for name in ("inside", "outside"))
    train(inside, 8, LongerIsSure())
    files = [tmp_path / f"verdicts-{number}.jsonl" for number in (1, 2)]
    first, second = (replace(plain, judge=JudgeConfig(file=str(file))) for file in files)
    to_read = [tmp_path / f"pairs-{number}.jsonl" for number in (1, 2)]
    assert train(first, 8, None, to_read=to_read[0]) == to_read[0]
    read_by_hand(to_read[0], files[0])
    with pytest.raises(UsageError, match="judges answers that are not sampled yet"):
        train(first, 8, None, resume=True)
    assert train(first, 8, None, resume=True, to_read=to_read[1]) == to_read[1]
    read_by_hand(to_read[1], files[1])
    train(second, 8, None, resume=True)
    assert_same_run(second, inside)
    assert [row["judge"] for row in rows(out(second), 2)[:1]] == [str(files[1])]


def test_resuming_a_finished_run_changes_nothing(whole: PreferenceConfig) -> None:
    files = [path for path in out(whole).glob("round-*/**/*") if path.is_file()]
    before = {path: path.stat().st_mtime_ns for path in files}
    assert train(whole, resume=True) == out(whole) / "round-2" / "model"
    # Settings that change no result may change.
    changed = replace(whole.train, rounds=1, log_steps=5, workers=2)
    assert train(replace(whole, train=changed), resume=True) == out(whole) / "round-1" / "model"
    assert {path: path.stat().st_mtime_ns for path in files} == before


def test_positions_other_than_those_of_the_base_are_refused(models: Models, tmp_path: Path) -> None:
    for base in (models.base, BUILTIN):
        with pytest.raises(UsageError, match="'continue', and model.base was taught 'predict'"):
            train(recipe(base, models.baseline, tmp_path, positions="continue"))


def test_a_run_is_not_continued_with_a_base_of_other_weights(
    models: Models, tmp_path: Path
) -> None:
    base = Path(shutil.copytree(models.base, tmp_path / "base"))
    config = recipe(str(base), models.baseline, tmp_path / "out")
    with power_cut_after(preference, "pairs_of", 0):
        train(config)
    shutil.copyfile(Path(models.baseline, "model.safetensors"), base / "model.safetensors")
    with pytest.raises(UsageError, match=r"begun with other model.base \(weights\)"):
        train(config, resume=True)


def test_prompts_with_equal_samples_give_no_pair(models: Models, tmp_path: Path) -> None:
    class Undecided(LongerWins):
        def compare(self, comparisons: Sequence[Comparison]) -> list[float]:
            return [0.0] * len(comparisons)

    config = recipe(*models, tmp_path / "out", quality_weight=float("inf"), rounds=1)
    with pytest.raises(InputError, match="no prompt has two samples of different score"):
        train(config, 2, Undecided())


STOPS = {
    # A batch of prompts is two calls of an engine, and a round of 24 prompts six.
    "while it samples round two": (TorchEngine, "generate", 9),
    "while it learns round two": (preference, "pair_log_probs", 16),
    "before it has scored": (preference, "pair", 1),
    "while it asks the reference": (packs, "over_labels", 1),
    "while it keeps the last model": (learner, "save", 1),
}
SLOW = [*STOPS][2:]


@pytest.mark.parametrize(
    "stop", [pytest.param(stop, marks=[pytest.mark.slow] * (stop in SLOW)) for stop in STOPS]
)
def test_an_interrupted_run_resumes_with_the_same_result(
    models: Models, whole: PreferenceConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    stop: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(preferences, "BATCH_SIZE", 8)
    config = replace(whole, train=replace(whole.train, out=str(tmp_path / "before")))
    with power_cut_after(*STOPS[stop]):
        train(config)
    (tmp_path / "before").rename(tmp_path / "out")  # it may be moved meanwhile
    config = replace(whole, train=replace(whole.train, out=str(tmp_path / "out")))
    train(config, resume=True)
    assert_same_run(config, whole)


NUM_RECORDS = 9


@pytest.fixture
def config(tmp_path: Path) -> RecordsConfig:
    write_records(tmp_path / "records.jsonl", records(NUM_RECORDS))
    return RecordsConfig(file=str(tmp_path / "records.jsonl"))


def shares(config: RecordsConfig) -> Sequence[Prompts]:
    return prompts_of(config, 2)


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


def test_a_file_with_too_few_records_or_an_id_twice_is_refused(config: RecordsConfig) -> None:
    with pytest.raises(InputError, match="has 9 records, too few for 2 rounds of 5"):
        shares(replace(config, num_prompts=5))
    rows = records(NUM_RECORDS)
    write_records(Path(config.file), [*rows, replace(rows[2], prompt="?")])
    with pytest.raises(InputError, match=rf"records\.jsonl has the id {rows[2].id} twice"):
        shares(config)


def test_preference_training_with_adapters_changes_only_the_adapters(tmp_path: Path) -> None:
    base = save_tiny(tmp_path / "base")
    names = ("one", "two", "three")
    pairs = [pair(name, f"Say {name}.", f"Nothing of {name} at all.") for name in names]
    plain = of_file(Models(base, base), tmp_path, *pairs, steps=10, learning_rate=3e-2)
    data = replace(plain.data, max_tokens=4096)
    config = replace(plain, data=data, lora=LoraConfig(rank=2, targets=("v_proj",)))
    folder = train(config)
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


PROMPTS = [PromptWithReference(f"q{number}", f"Question {number}?") for number in range(3)]
# Nearly greedy: then a token that is asked for again is the one that the local engine draws.
SAMPLING = Sampling(model="m", baseline="b", samples=2, temperature=1e-4, max_tokens=30, seed=3)


def sampled(path: Path, model: Pasta, baseline: Pasta) -> list[Rollout]:
    models = (model, baseline)
    return preferences.roll_out(path, PROMPTS, SAMPLING, lambda: models, lambda *_: None)


def test_servers_give_the_rollouts_of_the_local_engine(tmp_path: Path) -> None:
    folder = Path(save_tiny(tmp_path / "model"))
    config = json.loads((folder / FILE_NAME).read_text())
    exact = {**config, "positions": "continue", "join": "recompute"}
    (folder / FILE_NAME).write_text(json.dumps(exact))
    local = Pasta.from_pretrained(folder, dtype="float32", pool_tokens=8192)
    here = sampled(tmp_path / "here.jsonl", local, local)
    with serving(folder) as server:
        served = Servers(addresses=server.url, allow_inexact=True).holding(folder)
        there = sampled(tmp_path / "there.jsonl", served, local)
    num_compared = 0
    for one, other in zip(here, there, strict=True):
        assert one.baseline.text == other.baseline.text
        for ours, theirs in zip(one.samples, other.samples, strict=True):
            assert ours.finish_reason == theirs.finish_reason
            if ours.finish_reason == "stop":  # else threads of other clocks are cut elsewhere
                assert ours.program == theirs.program
                assert ours.critical_path == theirs.critical_path
                num_compared += 1
    assert num_compared > 0


def round_of(number: int) -> Round:
    return Round(number, Path("out"), "runs/out/round-1/model")


def test_from_the_second_round_on_servers_must_name_the_newest_model() -> None:
    old, new = ("base", "/models/base"), ("tuned", "/elsewhere/out/round-1/model")
    check_newest(round_of(1), {"http://a": old})
    check_newest(round_of(2), {"http://a": new, "http://b": new})
    with pytest.raises(UsageError, match="http://b serves base") as caught:
        check_newest(round_of(2), {"http://a": new, "http://b": old})
    assert "--resume" in (caught.value.hint or "")
