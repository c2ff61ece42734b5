"""``pasta evaluate tasks`` with a tiny random model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pasta_lab.tasks import make, training_families
from pasta_lm import Pasta as PastaModel
from pasta_lm import SamplingParams
from tests.cli.conftest import Pasta

FEW = ("--num-prompts", 1, "--num-timed", 0, "--set", "max_tokens=6")
DOCUMENTED = {"kind", "num_prompts", "model", "device", "baseline", "strategies"}


def test_help_lists_the_verbs(pasta: Pasta) -> None:
    result = pasta("evaluate", "--help")
    assert result.code == 0
    assert "Grade answers to verifiable tasks, and time them." in result.out
    assert pasta("evaluate").code == 2


def test_json_is_one_object_on_standard_output(pasta: Pasta, taught_folder: Path) -> None:
    result = pasta("evaluate", "tasks", "--model", taught_folder, *FEW, "--json")
    assert (result.code, result.err) == (0, "")
    assert result.out.count("\n") == 1
    found = result.json
    assert found.keys() >= DOCUMENTED
    assert (found["num_prompts"], found["split"], found["first_seed"]) == (1, "test", 0)
    assert (found["model"], found["baseline"]) == (str(taught_folder), str(taught_folder))
    assert [*found["strategies"]] == ["sequential", "pasta"]


def test_the_table_has_a_line_for_each_figure_and_a_column_for_each_strategy(
    pasta: Pasta, taught_folder: Path
) -> None:
    flags = ("--num-prompts", 1, "--num-timed", 1, "--set", "max_tokens=6")
    result = pasta("evaluate", "tasks", "--model", taught_folder, *flags)
    assert (result.code, result.err) == (0, "")
    assert "\x1b" not in result.out
    head, *lines = result.out.splitlines()
    assert head.split() == ["sequential", "pasta", "perfect", "forks"]
    rows = {re.split(r"\s\s+", line.strip())[0]: line for line in lines}
    for label in ("quality (mean grade)", "win rate", "realised speedup", "well formed"):
        assert len(rows[label]) == len(head)
    assert rows["quality (mean grade)"].split()[-1] == "-"
    assert rows.keys() >= {*training_families(), "quality, held-out"}
    setting = f"generated: 1 prompts of split test, wordings of test; {taught_folder} against"
    assert lines[-1].startswith(setting)


def test_a_baseline_answers_sequentially_for_the_model(
    pasta: Pasta, taught_folder: Path, untaught_folder: Path, tmp_path: Path
) -> None:
    records = tmp_path / "records.jsonl"
    flags = ("--model", taught_folder, "--baseline", untaught_folder, "--records", records)
    result = pasta("evaluate", "tasks", *flags, *FEW, "--json")
    assert (result.code, result.err) == (0, "")
    assert result.json["baseline"] == str(untaught_folder)
    rows = [json.loads(line) for line in records.read_text("utf-8").splitlines()]
    assert [row["strategy"] for row in rows] == ["sequential"] * 5 + ["pasta"] * 5
    params = SamplingParams(max_tokens=6, temperature=0)
    for row, model in zip((rows[0], rows[5]), (untaught_folder, taught_folder), strict=True):
        answer = PastaModel.from_pretrained(model, dtype="float32").generate(
            make("takings", "test", 0).prompt, params
        )
        assert row["text"] == answer.text


def test_all_strategies_are_measured(pasta: Pasta, taught_folder: Path) -> None:
    names = "pasta,apar,sot,prompt-lookup"
    flags = ("--model", taught_folder, "--strategies", names)
    few = ("--num-prompts", 1, "--num-timed", 1, "--set", "max_tokens=6")
    result = pasta("evaluate", "tasks", *flags, *few, "--json")
    assert result.code == 0
    assert result.err.splitlines() == [  # said once: it is no APAR that was measured
        "pasta: this model was not taught apar: it answers sequentially"
    ]
    found = result.json["strategies"]
    assert [*found] == [*names.split(","), "perfect forks"]
    lookup = found["prompt-lookup"]
    assert lookup["win_rate"]["mean"] == 0.5
    assert lookup["theoretical_speedup"]["mean"] >= 1
    assert "fork_precision" not in lookup
    assert found["perfect forks"]["kind"] == "replayed"


def test_an_unwritable_record_file_is_refused_before_decoding(pasta: Pasta, tmp_path: Path) -> None:
    flags = ("--model", "./nowhere", "--records", tmp_path / "absent" / "records.jsonl")
    result = pasta("evaluate", "tasks", *flags)
    assert (result.code, result.out) == (3, "")
    assert "records.jsonl cannot be written" in result.err


def test_an_interrupted_evaluation_reports_nothing(
    pasta: Pasta, taught_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pasta_lab.evaluate.tasks.evaluate_tasks", interrupt)
    result = pasta("evaluate", "tasks", "--model", taught_folder, *FEW, "--json")
    assert (result.code, result.out) == (130, "")
    assert "interrupted" in result.err


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        (("--strategies", "paste"), "one of pasta, sequential"),
        (("--strategies", "pasta,"), "one of pasta, sequential"),
        (("--strategies", "pasta,draft-model"), "one of pasta, sequential"),
        (("--split", "exam"), "one of train, dev, test, hard"),
        (("--set", "wordings=exam"), "one of train, dev, test, hard"),
        (("--num-prompts", "0"), "--num-prompts"),
        (("--num-timed", "-1"), "--num-timed"),
        (("--set", "max_tokens=0"), "max_tokens"),
        (("--seed", "-1"), "--seed"),
        (("--model", "./nowhere"), "no folder nowhere"),
    ],
)
def test_a_wrong_setting_is_refused_with_a_hint(
    pasta: Pasta, flags: tuple[str, ...], shown: str
) -> None:
    result = pasta("evaluate", "tasks", *flags)
    assert (result.code, result.out) == (2, "")
    assert shown in result.err
    assert len(result.err.splitlines()) <= 4


def test_flags_override_the_recipe(pasta: Pasta, taught_folder: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        f'model = "{taught_folder}"\nnum_prompts = 1\nnum_timed = 0\nmax_tokens = 6\nseed = 3\n'
        'strategies = ["sequential"]\nsplit = "dev"\n'
    )
    flags = ("--seed", 7, "--strategies", "pasta", "--set", "wordings=train")
    found = pasta("evaluate", "tasks", recipe, *flags, "--json").json
    told = [found[key] for key in ("split", "wordings", "first_seed", "max_tokens", "num_prompts")]
    assert told == ["dev", "train", 7, 6, 1]
    assert [*found["strategies"]] == ["pasta"]
    recipe.write_text("max_token = 6\n")
    refused = pasta("evaluate", "tasks", recipe)
    assert (refused.code, refused.out) == (2, "")
    assert "did you mean 'max_tokens'?" in refused.err


def test_a_setting_overrides_the_environment(pasta: Pasta, taught_folder: Path) -> None:
    flags = ("--model", taught_folder, *FEW, "--json")
    found = pasta("evaluate", "tasks", *flags, PASTA_DTYPE="bfloat16").json
    assert found["dtype"] == "bfloat16"
    found = pasta("evaluate", "tasks", *flags, "--set", "dtype=float32").json
    assert found["dtype"] == "float32"


def test_agreement_compares_two_annotations_of_the_same_answers(
    pasta: Pasta, tmp_path: Path
) -> None:
    plain = {"prompt": "?", "annotated": "Cats sleep a lot. Dogs run around."}
    block = '<async topic="cats">Cats sleep a lot.</async> '
    tagged = block + '<async topic="dogs">Dogs run around.</async>'
    files = {name: tmp_path / f"{name}.jsonl" for name in ("first", "second", "other")}
    files["first"].write_text(json.dumps({"id": "a", **plain, "annotated": tagged}) + "\n")
    files["second"].write_text(json.dumps({"id": "a", **plain}) + "\n")
    files["other"].write_text(json.dumps({"id": "b", **plain}) + "\n")

    found = pasta("evaluate", "agreement", files["first"], files["first"], "--json").json
    assert (found["num_answers"], found["blocks"]["overlap_f1"]["mean"]) == (1, 1.0)
    shown = pasta("evaluate", "agreement", files["first"], files["second"]).out
    assert re.search(r"blocks +F1, exactly the same ends +0.00", shown)
    assert "1 answers; 2 and 0 blocks, 0 and 0 syncs" in shown
    missed = pasta("evaluate", "agreement", files["first"], files["other"])
    assert (missed.code, missed.out) == (3, "")
    assert "no answer is in both annotations" in missed.err
