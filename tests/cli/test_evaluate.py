"""``pasta evaluate tasks`` with a tiny random model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pasta_lm.tasks import make, training_families
from tests.cli.conftest import Pasta

FEW = ("--num-prompts", 1, "--num-timed", 0, "--max-tokens", 6)
DOCUMENTED = {"kind", "num_prompts", "model", "device", "baseline", "strategies"}


def test_help_lists_the_verbs(pasta: Pasta) -> None:
    result = pasta("evaluate", "--help")
    assert result.code == 0
    assert "tasks       Grade answers to verifiable tasks, and time them." in result.out
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


def test_the_number_of_processes_changes_no_answer(
    pasta: Pasta, taught_folder: Path, tmp_path: Path
) -> None:
    flags = ("--model", taught_folder, "--num-prompts", 21, "--num-timed", 0, "--max-tokens", 6)
    told, rows = [], []
    for workers in (1, 2):
        file = tmp_path / f"{workers}.jsonl"
        more = ("--workers", workers, "--records", file, "--json")
        told.append(pasta("evaluate", "tasks", *flags, *more).json)
        rows.append(file.read_text("utf-8"))
    assert told[0] == told[1]
    assert rows[0] == rows[1]
    assert rows[0].count("\n") == 2 * (21 + 4)


def test_the_table_has_a_line_for_each_figure_and_a_column_for_each_strategy(
    pasta: Pasta, taught_folder: Path
) -> None:
    flags = ("--num-prompts", 1, "--num-timed", 1, "--max-tokens", 6)
    result = pasta("evaluate", "tasks", "--model", taught_folder, *flags)
    assert (result.code, result.err) == (0, "")
    assert "\x1b" not in result.out
    head, *lines = result.out.splitlines()
    assert head.split() == ["sequential", "pasta", "perfect", "forks"]
    rows = {line[:26].strip(): line[26:] for line in lines}
    for label in ("quality (mean grade)", "win rate", "realised speedup", "well formed"):
        assert len(rows[label]) == 3 * 26
    assert rows["quality (mean grade)"].split()[-1] == "-"
    assert rows.keys() >= {*training_families(), "quality, held-out"}
    setting = f"generated: 1 prompts of split test, wordings of test; {taught_folder} against"
    assert lines[-1].startswith(setting)


def test_the_flags_say_what_is_asked(pasta: Pasta, taught_folder: Path) -> None:
    flags = (*FEW, "--split", "dev", "--wordings", "train", "--seed", 7, "--strategies", "pasta")
    found = pasta("evaluate", "tasks", "--model", taught_folder, *flags, "--json").json
    told = [found[key] for key in ("split", "wordings", "first_seed")]
    assert told == ["dev", "train", 7]
    assert [*found["strategies"]] == ["pasta"]


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
    for row, (model, name) in zip(
        (rows[0], rows[5]),
        ((untaught_folder, "sequential"), (taught_folder, "pasta")),
        strict=True,
    ):
        prompt = make("takings", "test", 0).prompt
        flags = ("--model", model, "--strategy", name, "--max-tokens", 6, "--json")
        answer = pasta("run", prompt, *flags).json
        assert (row["text"], row["program"]) == (answer["text"], answer["program"])


def test_the_baseline_s_answers_can_be_those_of_an_earlier_run(
    pasta: Pasta, taught_folder: Path, untaught_folder: Path, tmp_path: Path
) -> None:
    earlier, now = tmp_path / "earlier.jsonl", tmp_path / "now.jsonl"
    flags = ("--model", taught_folder, "--baseline", untaught_folder, *FEW, "--json")
    usual = pasta("evaluate", "tasks", *flags, "--records", earlier).json
    more = ("--records", now, "--baseline-records", earlier)
    again = pasta("evaluate", "tasks", *flags, *more).json
    assert again == usual | {"baseline_records": str(earlier)}
    assert now.read_text("utf-8") == earlier.read_text("utf-8")
    for same in (now, tmp_path / "elsewhere" / ".." / now.name):
        more = ("--records", now, "--baseline-records", same)
        refused = pasta("evaluate", "tasks", *flags, *more)
        assert (refused.code, refused.out) == (3, "")
        assert "would be read and written" in refused.err
    assert now.read_text("utf-8") == earlier.read_text("utf-8")


def test_every_way_to_answer_can_be_measured_beside_the_bounds(
    pasta: Pasta, taught_folder: Path
) -> None:
    names = "pasta,apar,sot,prompt-lookup,draft-model"
    flags = ("--model", taught_folder, "--strategies", names, "--draft", taught_folder)
    few = ("--num-prompts", 1, "--num-timed", 1, "--max-tokens", 6, "--bounds")
    result = pasta("evaluate", "tasks", *flags, *few, "--json")
    assert result.code == 0
    assert result.err.splitlines() == [  # said once: it is no APAR that was measured
        "pasta: this model was not taught apar: it answers sequentially"
    ]
    found = result.json["strategies"]
    bounds = ["perfect forks", "always fork", "random fork"]
    assert [*found] == [*names.split(","), *bounds]
    for name in ("prompt-lookup", "draft-model"):
        assert found[name]["win_rate"]["mean"] == 0.5
        assert found[name]["theoretical_speedup"]["mean"] >= 1
        assert "fork_precision" not in found[name]
    assert found["draft-model"]["theoretical_speedup"]["mean"] > 1
    assert {found[name]["kind"] for name in bounds} == {"replayed"}


def test_a_record_file_that_cannot_be_written_is_named_before_anything_is_decoded(
    pasta: Pasta, tmp_path: Path
) -> None:
    flags = ("--model", "./nowhere", "--records", tmp_path / "absent" / "records.jsonl")
    result = pasta("evaluate", "tasks", *flags)
    assert (result.code, result.out) == (3, "")
    assert "records.jsonl cannot be written" in result.err


def test_interrupted_it_reports_nothing(
    pasta: Pasta, taught_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pasta_lm.evaluate.tasks.answer_tasks", interrupt)
    result = pasta("evaluate", "tasks", "--model", taught_folder, *FEW, "--json")
    assert (result.code, result.out) == (130, "")
    assert "interrupted" in result.err


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        (("--strategies", "paste"), "one of pasta, sequential"),
        (("--strategies", "pasta,"), "one of pasta, sequential"),
        (("--strategies", "pasta,draft-model"), "--draft and the strategy draft-model"),
        (("--draft", "./nowhere"), "--draft and the strategy draft-model"),
        (("--split", "exam"), "one of train, dev, test, hard"),
        (("--wordings", "exam"), "one of train, dev, test, hard"),
        (("--num-prompts", "0"), "--num-prompts"),
        (("--num-timed", "-1"), "--num-timed"),
        (("--max-tokens", "0"), "--max-tokens"),
        (("--seed", "-1"), "--seed"),
        (("--model", "./nowhere"), "no config.json"),
        (("--prompts", "3"), "--num-prompts"),
    ],
)
def test_a_wrong_setting_is_refused_with_what_would_be_right(
    pasta: Pasta, flags: tuple[str, ...], shown: str
) -> None:
    result = pasta("evaluate", "tasks", *flags)
    assert (result.code, result.out) == (2, "")
    assert shown in result.err
    assert len(result.err.splitlines()) <= 4
