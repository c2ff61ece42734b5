"""An alpaca run from stored answers: judgements, speeds, the report and its page."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest

from pasta_lm.engines import Engine
from pasta_lm.engines.request import SamplingParams
from pasta_lm.engines.servers.client import RetryPolicy
from pasta_lm.errors import InputError
from pasta_lm.journal import Journal, Row, read_rows, write_rows
from pasta_lm.learn.chat.client import ChatClient, Endpoint
from pasta_lm.measure import alpaca
from pasta_lm.measure.alpaca import AlpacaSettings
from pasta_lm.measure.answering import TOO_LONG, Answerer, SetPrompt, System, Workload
from pasta_lm.measure.prompt_sets import read_instructions, read_reference
from pasta_lm.measure.table import Report
from pasta_lm.measure.win_rates import Judgement
from pasta_lm.strategies.model import Pasta
from tests.fakes.scripted_judge import answers_of
from tests.learn.judge.endpoint import ScriptedTransport, stated


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw few bootstrap samples: intervals have tests of their own."""
    monkeypatch.setattr("pasta_lm.measure.win_rates.NUM_DRAWS", 5)
    monkeypatch.setattr("pasta_lm.measure.table.NUM_DRAWS", 50)


JUDGE = alpaca.JudgeRecipe(model="a-judge", base_url="http://judge.invalid/v1")
NUM = 12


def settings(folder: Path, **changes: Any) -> AlpacaSettings:
    file = folder / "instructions.jsonl"
    rows = [{"instruction": f"Say {n}.", "dataset": "ab"[n % 2]} for n in range(NUM)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    usual: dict[str, Any] = {"instructions": str(file), "model": "taught", "baseline": "base"}
    return AlpacaSettings(**{**usual, "judge": JUDGE, **changes})


def answered(folder: Path, **changes: Any) -> Path:
    """Return a run whose answers are there: ours wins by "good" on even ids, is equal on 11."""
    run, recipe = folder / "run", settings(folder, **changes)
    alpaca.begin_run(run, recipe)
    made = {"kind": "generated", "engine": "torch", "positions": "predict", "hardware": "cpu"}
    made |= {"dtype": "float32", "commit": "abc123", "version": "0"}
    rows = []
    for system in recipe.all_systems:
        for number in range(NUM):
            is_ours = system.name == "pasta" and number != 11
            text = f"{'good' if is_ours == (number % 2 == 0) else 'bad'} {number}" + "!" * is_ours
            if number == 11:
                text = "the same"
            key = {"id": f"{system.name}/{number}", "instruction_id": str(number)}
            about = {"system": system.name, "strategy": system.strategy, "model": system.model}
            path, wall_s = (5, 1.0) if is_ours else (10, 1.5)
            counts = {"num_content_tokens": 10, "critical_path": path, "wall_s": wall_s}
            rows.append({**key, **about, **made, **counts, "text": text})
    Journal(run / "answers.jsonl").append(rows)
    return run


def good_wins(said: str) -> dict[str, Any]:
    first, _ = answers_of(said)
    winner = "A" if first.startswith("good") else "B"
    return stated(f"Verdict: {winner}, confidence: 90")


def ask_judge(run: Path, script: Any = good_wins) -> ScriptedTransport:
    transport = ScriptedTransport(script)
    endpoint = Endpoint(base_url="http://judge.invalid/v1", model="a-judge")
    policy = RetryPolicy(max_requests=1)
    client = partial(ChatClient, endpoint, policy=policy, servers=[transport])
    judge = alpaca.stored_judge(run, JUDGE)
    assert judge is not None
    replace(judge, client=client).ask(alpaca.all_comparisons(alpaca.open_run(run)))
    return transport


def winner(prompt: str, first: str) -> int:
    """Return the better answer: the first one to "Say 3.", and none to "Say 4."."""
    return {"Say 3.": 1, "Say 4.": 0}.get(prompt, 1 if first.startswith("good") else 2)


def moody(said: str) -> dict[str, Any]:
    prompt = next(f"Say {n}." for n in range(NUM) if f"Say {n}." in said)
    name = ("tie", "A", "B")[winner(prompt, answers_of(said)[0])]
    return stated(f"Verdict: {name}, confidence: 90")


def go_on(folder: Path, to_read: Path | None = None) -> Path | None:
    recipe = settings(folder, judge=alpaca.JudgeRecipe(file=str(folder / "v.jsonl")))
    return alpaca.evaluate_alpaca(folder / "run", recipe, lambda *_: None, lambda _: None, to_read)


def read_by_hand(folder: Path) -> list[Row]:
    answered(folder, judge=alpaca.JudgeRecipe(file="v.jsonl"))
    assert go_on(folder, folder / "pairs.jsonl") == folder / "pairs.jsonl"
    rows = read_rows(folder / "pairs.jsonl")
    return [{**row, "winner": winner(*[*row.values()][1:3]), "confidence": 0.9} for row in rows]


def report_of(run: Path, *, allow_missing: bool = False) -> Report:
    return alpaca.alpaca_report(*alpaca.open_run(run), allow_missing=allow_missing)


def judged(run: Path) -> list[Judgement]:
    answers, readings, _ = alpaca.open_run(run)
    assert readings is not None
    return alpaca.judgements_of(answers, readings, "pasta")


@pytest.mark.parametrize(("penalty", "expected"), [(None, 1.3), (1.0, 1.0), (1.2, 1.2)])
def test_a_model_answers_with_its_own_repetition_penalty_unless_the_settings_have_one(
    tmp_path: Path, penalty: float | None, expected: float
) -> None:
    loaded = SimpleNamespace(sampling={"repetition_penalty": 1.3, "top_k": 9})
    model = Pasta(cast(Engine, SimpleNamespace(loaded=loaded)))
    with patch.object(Pasta, "request", autospec=True) as request:
        answerer = Answerer(models={"m": model}, params=SamplingParams(), penalty=penalty)
        workload = Workload(Journal(tmp_path / "a.jsonl"), [SetPrompt("1", "Hi.")], [])
        answerer._request(System("s", "pasta", "m"), workload.prompts[0], workload)
    assert settings(tmp_path).repetition_penalty is None
    assert request.call_args.args[2] == SamplingParams(repetition_penalty=expected)


def test_a_report_has_speeds_and_win_rates_over_both_orders_and_says_why_none_compares(
    tmp_path: Path,
) -> None:
    run = answered(tmp_path)
    transport = ask_judge(run)
    assert len(transport.asked) == 2 * 11  # the baseline against itself, and 11, are not asked
    preferences = [one.preference for one in judged(run)]
    assert preferences == pytest.approx([0.9, 0.1] * 5 + [0.9, 0.5])
    report = report_of(run).to_dict()
    figures = report["systems"]
    assert figures["pasta"]["win_rate"] == pytest.approx(100 * (6 * 0.9 + 5 * 0.1 + 0.5) / 12)
    assert figures["pasta"]["n_total"] == 12
    assert figures["sequential"]["win_rate"] == 50
    assert figures["sequential"]["length_controlled_winrate"] == pytest.approx(50)
    low, high = (figures["pasta"]["length_controlled_interval"][key] for key in ("low", "high"))
    assert low <= figures["pasta"]["length_controlled_winrate"] <= high
    speedups = {"realised_speedup": 1.5 ** (11 / 12), "theoretical_speedup": 2 ** (11 / 12)}
    for name, expected in speedups.items():
        assert figures["pasta"][name]["mean"] == pytest.approx(expected, abs=1e-5)
    assert figures["pasta"]["num_timed"] == 12
    assert report["is_comparable"] is False
    for part in ("a-judge/stated-confidence-v1", "the baseline is sequential", "difficulty"):
        assert part in report["comparability"]


def test_order_figures_reveal_a_judge_that_favours_the_first_answer(tmp_path: Path) -> None:
    for name, script, agreement, share in (
        ("fair", good_wins, 1.0, 0.5),
        ("biased", lambda _: stated("Verdict: A, confidence: 90"), 0.0, 0.9),
    ):
        folder = tmp_path / name
        folder.mkdir()
        run = answered(folder)
        ask_judge(run, script)
        figures = report_of(run).to_dict()["systems"]["pasta"]
        assert (figures["order_agreement"], figures["first_place_share"]) == (agreement, share)


def test_without_all_verdicts_there_is_no_win_rate_and_the_missing_ones_are_named(
    tmp_path: Path,
) -> None:
    def fails(said: str) -> dict[str, Any] | int:
        if "Say 3." in said:
            return 503
        return stated("Hm.") if "Say 4." in said else good_wins(said)

    run = answered(tmp_path)
    ask_judge(run, fails)
    figures = report_of(run).to_dict()["systems"]["pasta"]
    assert figures["problems"] == {
        "no-reply": {"count": 2, "instructions": ["3"]},
        "not-a-verdict": {"count": 2, "instructions": ["4"]},
    }
    assert figures["win_rate"] is figures["length_controlled_winrate"] is None
    assert figures["refused"] == "no win rate: 2 of 12 rows have no verdict (3, 4)"
    allowed = report_of(run, allow_missing=True).to_dict()["systems"]["pasta"]
    assert allowed["win_rate"] == pytest.approx(100 * (5 * 0.9 + 4 * 0.1 + 0.5) / 10)
    assert allowed["win_rate_missing_lost"] == pytest.approx(100 * (5 * 0.9 + 4 * 0.1 + 0.5) / 12)
    ask_judge(run)
    healed = report_of(run).to_dict()["systems"]["pasta"]
    assert healed["missing_rows"] == [4]  # a reply that says nothing was paid for, and stays


def test_a_scripted_judge_never_yields_a_win_rate(tmp_path: Path) -> None:
    run = answered(tmp_path)
    ask_judge(run, lambda said: good_wins(said) | {"system_fingerprint": "scripted"})
    report = report_of(run, allow_missing=True)
    report.write(run)
    assert report.to_dict()["systems"]["pasta"]["pipeline_check"] == "pipeline check, n = 12"
    for name in ("report.json", "report.md"):
        text = (run / name).read_text()
        assert "pipeline check, n = 12" in text
        assert "win_rate" not in text
        assert "| win rate" not in text


def test_a_file_of_verdicts_counts_as_a_judge_with_its_opinions(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    inside, run = answered(tmp_path / "inside"), tmp_path / "run"
    ask_judge(inside, moody)
    write_rows(tmp_path / "v.jsonl", verdicts := read_by_hand(tmp_path))
    assert go_on(tmp_path) is None
    (tmp_path / "v.jsonl").unlink()  # the folder has a copy
    report = report_of(run).to_dict()
    assert report["systems"] == report_of(inside).to_dict()["systems"]
    named = report["judge"]["contradictory"]
    assert "1 pairs have another winner in each order" in named
    assert all(row["id"] in named for row in verdicts if row["prompt"] == "Say 3.")


def test_nothing_that_a_reader_gets_tells_whose_an_answer_is(tmp_path: Path) -> None:
    read_by_hand(tmp_path)
    rows = read_rows(tmp_path / "pairs.jsonl")
    assert {tuple(row) for row in rows} == {("id", "prompt", "first", "second")}
    assert not any(name in str(rows) for name in ("pasta", "sequential", "taught", "base"))
    orders = {(row["prompt"], row["first"], row["second"]) for row in rows}
    assert orders == {(prompt, second, first) for prompt, first, second in orders}
    assert [row["prompt"] for row in rows[::2]] != [row["prompt"] for row in rows[1::2]]


def test_what_a_file_of_verdicts_lacks_is_named_and_unknown_ids_are_refused(tmp_path: Path) -> None:
    verdicts, file, rest = read_by_hand(tmp_path), tmp_path / "v.jsonl", tmp_path / "rest.jsonl"
    write_rows(file, [row for row in verdicts if row["prompt"] != "Say 5."])
    assert go_on(tmp_path, rest) == rest
    ids = sorted(row["id"] for row in read_rows(rest))
    report = report_of(tmp_path / "run").to_dict()
    problem = f"2 of 22 comparisons have no verdict ({', '.join(ids)})"
    assert report["judge"]["missing"] == f"{file}: {problem}"
    assert report["systems"]["pasta"]["refused"].endswith("1 of 12 rows have no verdict (5)")
    write_rows(file, [*verdicts, {"id": "no", "winner": 1}])
    with pytest.raises(InputError, match=r"v.jsonl: 1 verdicts are on no comparison here \(no\)"):
        go_on(tmp_path)
    assert report_of(tmp_path / "run").to_dict() == report
    file.rename(tmp_path / "moved.jsonl")
    again = go_on(tmp_path, tmp_path / "again.jsonl")
    assert sorted(row["id"] for row in read_rows(again or file)) == ids


def test_the_report_is_computed_from_the_folder(tmp_path: Path) -> None:
    run = answered(tmp_path)
    ask_judge(run)
    before = report_of(run)
    (tmp_path / "instructions.jsonl").unlink()
    moved = tmp_path / "moved"
    run.rename(moved)
    assert report_of(moved) == before


def test_every_number_of_the_page_has_its_n_interval_and_origin(tmp_path: Path) -> None:
    run = answered(tmp_path)
    ask_judge(run)
    report_of(run).write(run)
    page = (run / "report.md").read_text()
    sections = page.split("\n## ")[1:]
    assert [one.partition("\n")[0] for one in sections] == ["sequential", "pasta"]
    head = ("judge: name a-judge/stated-confidence-v1", "\n- baseline: sequential\n")
    assert all(part in page.partition("\n## ")[0] for part in head)
    facts = ("model: ", "engine: torch", "hardware: cpu", "commit: abc123", "kind: generated")
    for section in sections:
        assert all(part in section for part in facts)
    lines = [line.split(" | ") for line in page.splitlines() if line.endswith(" |")]
    rows = [line for line in lines if line[0] not in ("| figure", "| ---")]
    assert len(rows) > 15
    for name, value, low, high, count in rows:
        if "failed" not in name and value != "-":
            assert low == high == "-" or float(low) <= float(value) <= float(high)
        assert int(count.removesuffix(" |")) > 0
    assert "://" not in page.replace("http://judge.invalid/v1", "")


def test_a_failed_answer_is_a_loss_and_is_not_judged(tmp_path: Path) -> None:
    run = answered(tmp_path)
    rows = read_rows(run / "answers.jsonl")
    for row in rows:
        if row["id"] == "pasta/0":
            row |= {"text": "", "finish_reason": TOO_LONG, "num_content_tokens": 0}
    write_rows(run / "answers.jsonl", rows)
    transport = ask_judge(run)
    assert len(transport.asked) == 2 * 10
    assert judged(run)[0].preference == 0
    figures = report_of(run).to_dict()["systems"]["pasta"]
    assert (figures["num_failed"], figures["num_prompts"], figures["num_timed"]) == (1, 12, 11)


def test_a_reference_file_is_the_baseline_of_quality_and_not_of_speed(tmp_path: Path) -> None:
    file = tmp_path / "outputs_strong.jsonl"
    rows = [{"instruction": f"Say {n}.", "output": f"good {n}?"} for n in range(NUM)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = answered(tmp_path, reference=str(file))
    ask_judge(run)
    report = report_of(run).to_dict()
    assert (report["baseline"], report["speed_baseline"]) == ("strong", "sequential")
    expected = 100 * (5 * 0.5 + 7 * 0.1) / 12  # ties on five odd ids, losses on the others
    assert report["systems"]["sequential"]["win_rate"] == pytest.approx(expected)


def test_a_report_without_answers_is_refused(tmp_path: Path) -> None:
    alpaca.begin_run(tmp_path / "run", settings(tmp_path))
    with pytest.raises(InputError, match="no answers of sequential yet"):
        alpaca.open_run(tmp_path / "run")


def test_instructions_are_read_from_json_lines_and_json_arrays(tmp_path: Path) -> None:
    rows = [{"instruction": "One?", "dataset": "koala"}, {"instruction": "Two?", "id": "x"}]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for name in ("a.json", "a.jsonl"):
        found = read_instructions(str(tmp_path / name))
        assert [(one.id, one.group) for one in found] == [("0", "koala"), ("x", "")]
        assert len(read_instructions(str(tmp_path / name), 1)) == 1


def test_instructions_are_read_from_annotated_data(tmp_path: Path) -> None:
    turn = {"role": "user", "content": "One?"}
    rows = [
        {"id": "a", "messages": [turn], "response": "1", "source": "ours"},
        {"id": "b", "messages": [turn], "domain": "count", "source": "ours"},
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = [one[:3] for one in read_instructions(str(tmp_path / "a.jsonl"))]
    assert found == [("a", "One?", "ours"), ("b", "One?", "count")]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"instruction": " "}', "no 'instruction'"),
        ('{"messages": [{"role": "user", "content": "a"}, {}]}', "no 'instruction'"),
        ('{"instruction": "a", "id": 1}\n{"instruction": "b", "id": 1}', "id 1 occurs twice"),
        ("", "has no instructions"),
    ],
)
def test_invalid_instructions_are_refused(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(text)
    with pytest.raises(InputError, match=says):
        read_instructions(str(file))


@pytest.mark.parametrize(
    ("source", "asked"),
    [
        ("tatsu-lab/alpaca_eval", ("tatsu-lab/alpaca_eval", "alpaca_eval.json")),
        ("owner/name:part/one.json", ("owner/name", "part/one.json")),
        ("data/absent.jsonl", None),
        ("./owner/name", None),
        ("absent", None),
    ],
)
def test_only_hub_names_are_downloaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str, asked: tuple[str, str] | None
) -> None:
    found = []

    def download(name: str, file: str, repo_type: str) -> str:
        found.append((name, file))
        (tmp_path / "got.json").write_text('[{"instruction": "From the hub?"}]')
        return str(tmp_path / "got.json")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    if asked is None:
        with pytest.raises(InputError, match="no such file"):
            read_instructions(source)
    else:
        assert read_instructions(source)[0].text == "From the hub?"
    assert found == ([] if asked is None else [asked])


def test_a_reference_has_one_generator(tmp_path: Path) -> None:
    rows = [{"instruction": n, "output": "x", "generator": n} for n in "ab"]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    with pytest.raises(InputError, match="answers of 2 generators"):
        read_reference(str(tmp_path / "a.json"))
    (tmp_path / "a.json").write_text(json.dumps(rows[:1]))
    assert read_reference(str(tmp_path / "a.json"))[0] == "a"
