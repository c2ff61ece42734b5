"""Replay: given answers are decoded exactly, both ways; broken and unfit answers are reported."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import geometric_mean
from types import SimpleNamespace

import pytest
import torch

from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.request import Answer, Request, SamplingParams
from pasta_lm.errors import RequestError
from pasta_lm.language import parse
from pasta_lm.learn.data.annotated import Record
from pasta_lm.learn.data.answer_record import AnswerRecord
from pasta_lm.measure import bench
from pasta_lm.measure.replay import Pair, Replay, replay
from pasta_lm.strategies import sequential_request
from pasta_lm.strategies.requests import forced
from tests.architectures import build, load, loaded

TWO = (
    'Two. <async topic="left">one two three</async> '
    '<async topic="right">four five</async><sync/>End.'
)
ONE = "Nothing to share here."


def answer(annotated: str, name: str = "a") -> Record:
    return Record(name, "A question?", parse(annotated, "annotator"))


def test_both_runs_decode_exactly_the_text() -> None:
    model = loaded("llama")
    engine = TorchEngine(model, pool_tokens=512, captures=False)
    document = parse(TWO, "annotator").with_lengths(model.vocabulary.count_tokens)
    prompt = model.vocabulary.encode_prompt("A question?")
    params = SamplingParams(max_tokens=200)
    one = forced(sequential_request(prompt, params), document, model.vocabulary)
    many = forced(Request(prompt=prompt, params=params), document, model.vocabulary)
    (alone,), (together,) = engine.generate([one, many])
    assert alone.text == together.text == document.plain_text
    assert together.document == document
    assert len(alone.trace.threads) == 1
    assert len(together.trace.threads) == 3
    assert together.trace.kind == "replayed"


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


def record(critical_path: int, num_content_tokens: int, wall_s: float, **rest: int) -> AnswerRecord:
    return AnswerRecord(
        text="",
        program="",
        finish_reason="stop",
        num_illegal=0,
        num_content_tokens=num_content_tokens,
        critical_path=critical_path,
        wall_s=wall_s,
        **rest,
    )


def test_figures_are_geometric_means_and_their_ratio() -> None:
    one, many = record(100, 90, 10.0), record(50, 90, 6.0, num_threads=3)
    plain = record(100, 100, 10.0, num_threads=1)
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
    run = engine.runner.run

    def counted(batch: object) -> torch.Tensor:
        sizes.append(len(batch.tokens))  # type: ignore[attr-defined]
        return run(batch)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "runner", SimpleNamespace(run=counted))
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
