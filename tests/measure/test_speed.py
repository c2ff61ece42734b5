"""Speedups, parallelism and lengths of small hand-made answers, and their tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import pytest
import torch

from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.request import Answer, Request, SamplingParams
from pasta_lm.errors import InputError, RequestError, UsageError
from pasta_lm.language import parse
from pasta_lm.learn.data.annotated import Record
from pasta_lm.learn.data.answer_record import AnswerRecord
from pasta_lm.measure import bench
from pasta_lm.measure.replay import Pair, Replay, replay
from pasta_lm.measure.speed import read_systems, realised, speed, speed_report
from pasta_lm.measure.table import Interval
from tests.architectures import build, load, loaded

USUAL = {"program": "x" * 20, "finish_reason": "stop", "num_illegal": 0}


def answered(**changes: Any) -> AnswerRecord:
    """Return an answer that ended by itself, of ten tokens one after another."""
    usual = USUAL | {"text": "x" * 20, "num_content_tokens": 10, "critical_path": 10}
    return AnswerRecord(**(usual | changes))


def answers(key: str, values: Sequence[Any]) -> list[AnswerRecord]:
    return [answered(**{key: value}) for value in values]


def mean(interval: Interval | None) -> float | None:
    return interval and round(interval.mean, 5)


@pytest.mark.parametrize(
    ("figure", "key", "ours", "theirs", "expected"),
    [
        ("theoretical_speedup", "critical_path", (10,), (20,), 2.0),
        ("theoretical_speedup", "critical_path", (20,), (10,), 0.5),
        # The arithmetic mean of 4 and 1/4 would be more than 2.
        ("theoretical_speedup", "critical_path", (10, 40), (40, 10), 1.0),
        # Answers that ended before their first token.
        ("theoretical_speedup", "critical_path", (0,), (3,), 3.0),
        ("theoretical_speedup", "critical_path", (3,), (0,), 0.33333),
        ("length_ratio", "text", ("xx",), ("x",), 2.0),
        ("length_ratio", "text", ("",), ("xx",), 0.5),
        ("parallelism", "num_content_tokens", (20,), (1,), 2.0),
        ("parallelism", "num_content_tokens", (40, 10), (1, 1), 2.0),
        ("parallelism", "num_content_tokens", (0,), (1,), 0.001),
    ],
)
def test_figures_are_geometric_means_over_prompts(
    figure: str, key: str, ours: tuple[Any, ...], theirs: tuple[Any, ...], expected: float
) -> None:
    assert mean(speed(answers(key, ours), answers(key, theirs))[figure]) == expected


@pytest.mark.parametrize(
    ("ours", "theirs", "speedup", "num_timed"),
    [
        ((), (), None, 0),
        ((1.0,), (2.0,), 2.0, 1),
        ((1.0, 4.0), (4.0, 1.0), 1.0, 2),
        ((0.5, None), (1.0, 1.0), 2.0, 1),  # an answer that was decoded among others has no clock
        ((1.0, 1.0), (1.5, None), 1.5, 1),
        ((None,), (None,), None, 0),
    ],
)
def test_realised_speedup_is_the_ratio_of_clocks(
    ours: Sequence[float | None],
    theirs: Sequence[float | None],
    speedup: float | None,
    num_timed: int,
) -> None:
    figures = realised(answers("wall_s", ours), answers("wall_s", theirs))
    assert (mean(figures["realised_speedup"]), figures["num_timed"]) == (speedup, num_timed)


def record(system: str, prompt: str, path: int, wall_s: float | None = 1.0, **rest: Any) -> Any:
    key = {"instruction_id": prompt, "system": system, "kind": "generated"}
    counts = {"num_content_tokens": 12, "critical_path": path}
    return {**key, **counts, "text": "x" * path, "wall_s": wall_s, **rest}


def table_of(*sources: Path, baseline: str = "sequential") -> Any:
    return speed_report(sources, baseline).to_dict()["systems"]


def stored(tmp_path: Path, *rows: Any) -> Path:
    file = tmp_path / "records.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """Return records of two systems: four and one times as fast by path, two and half by clock."""
    return stored(
        tmp_path,
        record("sequential", "1", 40, 2.0),
        record("pasta", "1", 10, 1.0),
        record("sequential", "2", 10, 1.0),
        record("pasta", "2", 10, 2.0),
        record("sequential", "3", 10, None),
    )


def test_the_table_has_both_speedups(records: Path) -> None:
    table = table_of(records)
    assert [*table] == ["sequential", "pasta"]
    figures = table["pasta"]
    means = {
        "theoretical_speedup": 2.0,
        "realised_speedup": 1.0,
        "efficiency": 0.5,
        "parallelism": 1.2,
        "length_ratio": 0.5,
    }
    assert {key: figures[key]["mean"] for key in means} == pytest.approx(means, abs=1e-5)
    counts = ("num_prompts", "num_timed", "num_unpaired", "kinds")
    assert [figures[key] for key in counts] == [2, 2, 1, ["generated"]]


def test_each_run_is_compared_with_its_own_baseline(tmp_path: Path) -> None:
    # The machine was twice as slow in the second run, for the baseline too.
    runs = []
    for name, slowness in (("pasta", 1.0), ("apar", 2.0)):
        (tmp_path / name).mkdir()
        rows = (record("sequential", "1", 40, 4 * slowness), record(name, "1", 10, 2 * slowness))
        runs.append(stored(tmp_path / name, *rows))
    table = table_of(*runs)
    assert [*table] == ["sequential", "pasta", "apar"]
    assert [table[name]["realised_speedup"]["mean"] for name in table] == [1.0, 2.0, 2.0]


def test_runs_that_share_a_baseline_or_a_system_are_read_as_one(tmp_path: Path) -> None:
    runs = []
    for prompt in "12":
        (tmp_path / prompt).mkdir()
        rows = (record("sequential", prompt, 40), record("pasta", prompt, 10))
        runs.append(stored(tmp_path / prompt, *rows))
    assert table_of(*runs)["pasta"]["num_prompts"] == 2
    (tmp_path / "alone").mkdir()
    alone = stored(tmp_path / "alone", record("apar", "1", 20))
    table = table_of(*runs, alone)
    assert (table["apar"]["num_prompts"], table["apar"]["num_unpaired"]) == (1, 1)


def test_the_record_with_a_clock_is_taken(tmp_path: Path) -> None:
    rows = [record("pasta", "1", 10, wall) for wall in (None, 3.0, None)]
    (timing,) = read_systems([stored(tmp_path, *rows)])["pasta"].values()
    assert timing.wall_s == 3.0


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"system": "pasta"}, ":1: no record of an answer"),
        (record("pasta", "1", -1), "'critical_path' is -1, not a count"),
        (record("pasta", "1", 1, 0.0), "'wall_s' is 0.0, not a time"),
        (record("pasta", "1", 1, num_content_tokens=True), "'num_content_tokens' is True"),
    ],
)
def test_an_invalid_row_is_an_error_with_its_line(tmp_path: Path, row: Any, says: str) -> None:
    with pytest.raises(InputError) as raised:
        read_systems([stored(tmp_path, row)])
    assert says in str(raised.value)


def test_empty_sources_and_an_unknown_baseline_are_refused(records: Path) -> None:
    (records.parent / "answers.jsonl").touch()
    with pytest.raises(InputError, match="no answers in"):
        read_systems([records.parent])
    with pytest.raises(UsageError, match="no answers of the baseline 'sot'"):
        table_of(records, baseline="sot")


def test_a_speedup_compares_answers_of_the_same_length_that_nothing_cut(tmp_path: Path) -> None:
    rows = [
        record("sequential", "1", 40, 2.0),
        record("same", "1", 10, 1.0, text="x" * 42),
        record("short", "1", 10, 1.0, text="x" * 30),
        record("cut", "1", 10, 1.0, text="x" * 40, finish_reason="length"),
    ]
    report = speed_report([stored(tmp_path, *rows)], "sequential")
    shown = {one.title: one for one in report.tables()}
    titles = {name: [row[0] for row in one.rows] for name, one in shown.items()}
    assert "realised speedup" in titles["same"]
    for name, why in (
        ("short", "lengths are 0.75 of the baseline's"),
        ("cut", "1 answers were cut"),
    ):
        assert "realised speedup" not in titles[name]
        assert "theoretical speedup" not in titles[name]
        assert list(shown[name].rows[0][:2]) == ["tokens/s", 12.0]
        assert why in shown[name].note


TWO = (
    'Two. <async topic="left">one two three</async> '
    '<async topic="right">four five</async><sync/>End.'
)
ONE = "Nothing to share here."


def answer(annotated: str, name: str = "a") -> Record:
    return Record(name, "A question?", parse(annotated, "annotator"))


def test_the_clock_does_not_count_the_first_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    walls, run = [], TorchEngine.generate

    def noted(engine: TorchEngine, requests: Sequence[Request]) -> list[list[Answer]]:
        answers = run(engine, requests)
        walls.append(answers[0][0].trace.wall_s)
        return answers

    monkeypatch.setattr(TorchEngine, "generate", noted)
    (pair,) = replay([answer(TWO)], loaded("llama")).pairs
    timed = walls[4:]  # two runs of each kind warm up
    assert pair.sequential.wall_s == min(timed[::2])
    assert pair.parallel.wall_s == min(timed[1::2])


def test_the_report_counts_the_decoded_answers() -> None:
    seen: list[tuple[int, int]] = []
    result = replay(
        [answer(TWO, "two"), answer(ONE, "one")],
        loaded("llama"),
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(1, 2), (2, 2)]
    told = result.report().to_dict()
    assert told["kind"] == "replayed"
    assert told["weights"] == "random-weights"
    assert told["num_documents"] == 2
    assert told["multi_block"]["num_documents"] == 1
    line = result.pairs[1]
    assert line.parallel.critical_path == line.sequential.critical_path
    assert line.parallel.critical_path == line.parallel.num_content_tokens


def test_an_answer_beyond_the_context_is_skipped_by_id_and_the_others_are_decoded() -> None:
    model = load("llama", build("llama", max_position_embeddings=48))
    endless = answer("word " * 100, "endless")
    report = replay([endless, answer("Short.", "short")], model)
    assert [name for name, _ in report.skipped] == ["endless"]
    assert [pair.answer.id for pair in report.pairs] == ["short"]


def test_an_interrupted_replay_reports_the_answers_that_were_done() -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    report = replay([answer(ONE, "done"), answer(TWO, "not")], loaded("llama"), progress=interrupt)
    assert report.was_interrupted
    assert [pair.answer.id for pair in report.pairs] == ["done"]


def test_figures_are_geometric_means_and_their_ratio() -> None:
    one = answered(critical_path=100, num_content_tokens=90, wall_s=10.0)
    many = replace(one, critical_path=50, wall_s=6.0, num_threads=3)
    plain = replace(one, num_content_tokens=100, num_threads=1)
    pairs = [Pair(answer(TWO), many, one), Pair(answer(ONE), plain, plain)]
    found = Replay(pairs).report().to_dict(has_bounds=False)
    assert found["theoretical_speedup"] == pytest.approx(2**0.5)
    assert found["realised_speedup"] == pytest.approx(geometric_mean([10 / 6, 1.0]))
    assert found["efficiency"] == pytest.approx(geometric_mean([10 / 12, 1.0]))
    assert found["sequential_tokens_per_s"] == pytest.approx(190 / 20)
    assert found["parallel_tokens_per_s"] == pytest.approx(190 / 16, abs=0.01)
    assert found["num_threads_mean"] == 2
    assert found["multi_block"]["theoretical_speedup"] == 2


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "NUM_STEADY", 4)
    monkeypatch.setattr(bench, "NUM_CONTEXT", 16)


@pytest.mark.parametrize("num_rows", [1, 2, 5])
def test_every_timed_pass_feeds_one_token_of_each_thread(
    num_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded("llama")
    engine = TorchEngine(model, pool_tokens=4096)
    sizes: list[int] = []
    run = engine.run_batch

    def counted(batch: object) -> torch.Tensor:
        sizes.append(len(batch.tokens))  # type: ignore[attr-defined]
        return run(batch)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "run_batch", counted)
    assert bench.step_s(engine, num_rows) > 0
    first = 8 if num_rows == 1 else 3 * num_rows + 4
    # Pass 0 is the prefill, whose end is not among the steps.
    assert set(sizes[1:][first : first + bench.NUM_STEADY]) == {num_rows}


def test_an_untied_input_matrix_is_not_read_in_a_pass_of_one_row() -> None:
    model = loaded("llama")
    whole = sum(one.numel() * one.element_size() for one in model.model.parameters())
    inputs = model.model.get_input_embeddings().weight
    outputs = model.model.get_output_embeddings().weight
    is_tied = inputs.data_ptr() == outputs.data_ptr()
    left_out = 0 if is_tied else inputs.numel() * inputs.element_size()
    assert bench.read_bytes(model) == whole - left_out


def test_an_answer_that_a_limit_cuts_fails_the_load_and_frees_the_engine() -> None:
    engine = TorchEngine(loaded("llama"))
    one = Request(prompt=(5, 6, 7), params=SamplingParams(max_tokens=2, ignore_eos=True))
    with pytest.raises(RequestError, match="positions beyond"):
        bench.latencies_s(engine, [one, one])
    assert not engine.has_work
    assert engine.pool.num_free_pages == engine.pool.num_pages


def test_reading_waits_for_the_gpu_that_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    waited, ones = set[torch.device](), torch.ones
    monkeypatch.setattr(torch, "ones", lambda *size, device: ones(*size))
    monkeypatch.setattr(torch.cuda, "synchronize", waited.add)
    assert bench.reading_s(1 << 16, torch.device("cuda:1")) > 0
    assert waited == {torch.device("cuda:1")}
