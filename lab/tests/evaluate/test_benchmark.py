"""A benchmark of a user's own runs through the whole evaluator, from one file of code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.tests.evaluate.regex_benchmark import RegexBenchmark
from pasta_lab.evaluate.benchmark import Evaluation, evaluate, report
from pasta_lab.evaluate.records import GradedAnswer
from pasta_lm.engines.request import SamplingParams
from pasta_lm.journal import Journal
from pasta_lm.measure.answering import TOO_LONG, Answerer, Prompt, System
from tests.measure.tiny import SIZES, tiny

MODELS = {"ours": tiny("ours", seed=7), "base": tiny("theirs", seed=1)}
SYSTEMS = (System("sequential", "sequential", "base"), System("pasta", "pasta", "ours"))
PARAMS = SamplingParams(max_tokens=24)
TOO_MANY_WORDS = "word " * (SIZES["max_position_embeddings"] + 1)


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory: pytest.TempPathFactory) -> RegexBenchmark:
    folder = tmp_path_factory.mktemp("prompts")
    for name, pattern, prompt in (
        ("any-1", ".*", "Name one river."),
        ("any-2", ".*", "Name two rivers."),
        ("none-1", "(?!)", "Name three rivers."),
        ("none-2", ".*", TOO_MANY_WORDS),
    ):
        (folder / f"{name}.txt").write_text(f"{pattern}\n{prompt}", "utf-8")
    return RegexBenchmark(folder)


@pytest.fixture(scope="module")
def evaluation(benchmark: RegexBenchmark) -> Evaluation:
    return evaluate(benchmark, SYSTEMS, Answerer(models=MODELS, params=PARAMS), num_timed=2)


def test_every_system_has_a_score_and_a_speed_over_all_prompts_and_each_group(
    evaluation: Evaluation,
) -> None:
    found = report(evaluation)
    assert (found["benchmark"], found["num_prompts"], found["baseline"]) == (
        "regex",
        4,
        "sequential",
    )
    assert [*found["systems"]] == ["sequential", "pasta"]
    for figures in found["systems"].values():
        assert figures["quality"]["mean"] == 0.5
        assert figures["groups"]["any"]["quality"]["mean"] == 1
        assert figures["groups"]["none"]["quality"]["mean"] == 0
        assert figures["num_timed"] == figures["groups"]["any"]["num_timed"] == 2
        assert figures["realised_speedup"]["mean"] > 0
        assert figures["theoretical_speedup"]["low"] <= figures["theoretical_speedup"]["high"]
    assert found["systems"]["pasta"]["win_rate"]["mean"] == 0.5
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_a_prompt_that_does_not_fit_the_context_is_a_failed_answer(evaluation: Evaluation) -> None:
    for answers in evaluation.scored.values():
        failed = answers[-1]
        assert isinstance(failed, GradedAnswer)
        assert (failed.text, failed.finish_reason, failed.grade) == ("", TOO_LONG, 0)
        assert not failed.is_well_formed
        assert all(answer.finish_reason != TOO_LONG for answer in answers[:-1])
    figures = report(evaluation)["systems"]["pasta"]
    assert (figures["num_failed"], figures["groups"]["any"]["num_failed"]) == (1, 0)
    assert figures["groups"]["none"]["num_failed"] == 1


def test_failed_answers_have_no_speed(evaluation: Evaluation, benchmark: RegexBenchmark) -> None:
    ours, theirs = (evaluation.scored[system.name] for system in SYSTEMS[::-1])
    slow = [a.theoretical_speedup(b) for a, b in zip(ours[:3], theirs[:3], strict=True)]
    found = report(evaluation)["systems"]["pasta"]["theoretical_speedup"]["mean"]
    assert found == pytest.approx((slow[0] * slow[1] * slow[2]) ** (1 / 3), abs=1e-5)


def test_a_stopped_evaluation_continues_from_its_journal(
    benchmark: RegexBenchmark, evaluation: Evaluation, tmp_path: Path
) -> None:
    stop_after = 3
    asked: list[str] = []

    def stop(name: str, done: int, total: int) -> None:
        asked.append(name)
        if len(asked) == stop_after:
            raise KeyboardInterrupt

    def journal(name: str) -> Journal:
        return Journal(tmp_path / f"{name}.jsonl")

    first = Answerer(models=MODELS, params=PARAMS, progress=stop, batch_size=2)
    with pytest.raises(KeyboardInterrupt):
        evaluate(benchmark, SYSTEMS, first, num_timed=2, journal=journal)
    stored = journal("scored").rows
    assert len(stored) == 2 * stop_after
    asked.clear()
    stop_after = 0
    again = evaluate(benchmark, SYSTEMS, first, num_timed=2, journal=journal)
    assert asked.count("sequential") == 0
    assert asked.count("pasta") == 1
    assert {**again.scored} == {**evaluation.scored}
    assert {*stored} < {*journal("scored").rows}
    asked.clear()
    assert evaluate(benchmark, SYSTEMS, first, num_timed=2, journal=journal) == again
    assert asked == []


def test_without_a_grader_there_are_speeds_and_no_quality() -> None:
    class Judged(RegexBenchmark):
        def __init__(self) -> None:
            self.prompts = [Prompt("1", "Name one river.")]

        def score(self, prompt: Prompt, answer: object) -> None:  # type: ignore[override]
            return None

    found = evaluate(Judged(), SYSTEMS, Answerer(models=MODELS, params=PARAMS))
    figures = report(found)["systems"]["pasta"]
    assert figures["quality"] is figures["win_rate"] is None
    assert figures["parallelism"]["mean"] > 0
