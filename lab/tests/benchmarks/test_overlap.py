"""The overlap of host and device: what is measured, and the formulas of what is computed."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest

from benchmarks import overlap
from benchmarks.host_time import Device, Step, decode, engine_on, requests_of
from pasta_lm.engines.local.loading import LoadedModel
from pasta_lm.engines.local.random_model import random_model, read_architecture, train_tokenizer
from pasta_lm.language.document import parse
from pasta_lm.models.annotated import Record
from pasta_lm.strategies import pasta, sequential

TEXT = (
    'One two three.<promise topic="a b" tokens="2"/><async> one two three four five six</async> And'
    ' much more text of main.<promise topic="c" tokens="1"/><async> one</async> Then wait.<sync/>'
    " The end of it."
)


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    tokenizer = train_tokenizer([parse(TEXT).plain_text])
    return random_model(read_architecture(overlap.SHAPE), tokenizer, name="tiny")


def passes_of(loaded: LoadedModel, strategy: str, in_flight: int, number: int) -> list[Step]:
    requests = requests_of(loaded, [Record("one", "A prompt", parse(TEXT))] * number, strategy)
    device = Device()
    engine = engine_on(device, loaded, in_flight * 2 * requests[0].max_entries)
    return decode(engine, device, requests, in_flight)


def test_a_sequential_answer_has_one_event_its_end(loaded: LoadedModel) -> None:
    steps = passes_of(loaded, sequential.NAME, 1, 1)
    kinds = [events for step in steps for events in step.events]
    assert [one["any"] for one in kinds] == [False] * (len(steps) - 1) + [True]
    assert not any(one["new_rows"] for one in kinds)
    assert all(step.num_rows == 1 for step in steps)


def test_forks_and_joins_bring_new_rows_and_ends_do_not(loaded: LoadedModel) -> None:
    steps = passes_of(loaded, pasta.NAME, 1, 1)
    kinds = [events for step in steps for events in step.events]
    assert sum(one["new_rows"] for one in kinds) == 3  # two forks and a join
    assert 5 <= sum(one["any"] for one in kinds) <= 7  # and two blocks' ends, a wait, main's end
    assert all(one["any"] for one in kinds if one["new_rows"])
    assert max(step.num_rows for step in steps) >= 2


def test_the_host_s_time_is_that_outside_the_device_and_of_passes_without_prompts(
    loaded: LoadedModel,
) -> None:
    steps = passes_of(loaded, pasta.NAME, 2, 4)
    pure = [step for step in steps if step.host is not None]
    assert pure
    assert all(len(step.events) == 2 for step in pure)
    assert all(step.host.wall_s > 0 for step in pure if step.host is not None)


def a_timeline(host: float, device: float, events: list[bool]) -> float:
    """Return when the last pass ends if each is launched before the tokens of the last are known.

    A pass starts when the one before it has ended and the host, which prepared it, is free.
    """
    ended = free = 0.0
    for is_event in events:
        start = max(ended, free)  # of the next pass; the tokens of this one are there
        free, ended = start + host, start + device
        if is_event:  # known when the host has read the tokens; the wrong pass runs to its end
            ended = max(free, ended) + device
    return max(ended, free)


@pytest.mark.parametrize(("host", "device"), [(1.0, 5.0), (5.0, 1.0), (2.0, 2.0), (0.0, 3.0)])
def test_the_formula_of_again_is_the_mean_of_a_timeline(host: float, device: float) -> None:
    rng = random.Random(0)
    events = [rng.random() < 0.2 for _ in range(400)]
    p = sum(events) / len(events)
    load = {"p": {"any": p, "new_rows": 0.0}, "q": {"any": 0.0, "new_rows": 0.0}}
    mean = a_timeline(host, device, events) / len(events)
    assert mean == pytest.approx(overlap.step_times(host, device, load)["again"], rel=0.01)


@pytest.mark.parametrize(("p", "gains"), [(0.0, True), (0.09, True), (0.11, False), (1.0, False)])
def test_again_gains_as_long_as_events_are_rarer_than_host_over_device(
    p: float, gains: bool
) -> None:
    load = {"p": {"any": p, "new_rows": p}, "q": {"any": p, "new_rows": p}}
    assert (overlap.step_times(1.0, 10.0, load)["again"] < 11.0) is gains


def test_the_command_writes_figures_and_prints_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(overlap, "LOADS", (1, 2))
    out = tmp_path / "out.json"
    monkeypatch.setattr(sys, "argv", ["overlap.py", str(out), "--number", "2"])
    overlap.main()
    (found,) = json.loads(out.read_text())["answers"].values()
    names = [(one["strategy"], one["in_flight"]) for one in found["loads"]]
    assert names == [(name, load) for name in ("sequential", "pasta") for load in (1, 2)]
    for one in found["loads"]:
        assert one["p"]["new_rows"] <= one["p"]["any"] <= one["p"]["with_masks"]
        assert one["q"]["any"] <= one["p"]["any"]
        assert one["speed"].keys() == overlap.DEVICE_MS.keys()
    assert "starter.jsonl, 2 answers" in capsys.readouterr().out
