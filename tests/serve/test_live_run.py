"""What the page takes while a run is decoded is, put together, the run as it is stored."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.request import Finished, Traced
from pasta_lm.engines.scripted import ScriptedEngine
from pasta_lm.errors import UsageError
from pasta_lm.interpreter.trace import Trace
from pasta_lm.language import parse
from pasta_lm.language.tags import PROMISE_OPEN
from pasta_lm.models.vocabulary import Vocabulary
from pasta_lm.serve import Bounds, ServeRecipe
from pasta_lm.serve.app import create_app
from pasta_lm.serve.backends import LocalBackend
from pasta_lm.strategies.model import Pasta
from pasta_lm.strategies.requests import STRATEGIES
from pasta_lm.view.run_data import LiveRun, run_data
from tests.architectures import loaded
from tests.serve.conftest import CHAT, ask, post, scripted, streamed
from tests.serve.runs import FLAT, NESTED, PARAMS, wide

TEXTS = {"flat": FLAT, "nested": NESTED, "wide": wide(12), "no block": "only main writes"}


def put_together(pieces: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the run that the pieces make, as the page puts them together."""
    parts = ("step_s", "threads", "tokens", "syncs", "forks", "joins")
    run: dict[str, Any] = {part: [] for part in parts}
    for piece in json.loads(json.dumps(pieces)):
        for part in parts:
            run[part] += piece[part]
        for number, step in piece["lanes"]:
            spans = run["threads"][number]["spans"]
            if spans and step <= spans[-1][2]:
                spans[-1][2] = max(spans[-1][2], step + 1)
            else:
                spans.append([number, step, step + 1])
        for number, step in piece["fed"]:
            assert run["tokens"][number]["fed"] is None
            run["tokens"][number]["fed"] = step
        for row in piece["seen"]:
            thread = run["threads"][row.pop("thread")]
            thread["seen"] = [*(thread["seen"] or []), row]
    return run


def without_its_end(run: Any) -> dict[str, Any]:
    """Return a stored run without what is known at its end only."""
    run = json.loads(json.dumps(run))
    for token in run["tokens"]:
        token["critical"] = False
    for thread in run["threads"]:
        thread["finish_reason"] = None  # the event ``ended`` has it
    return dict(run)


def decoded(text: str, **params: Any) -> tuple[list[Any], Trace, Any]:
    engine = ScriptedEngine(parse(text, "annotator", max_depth=2))
    request = engine.request("a prompt here", replace(PARAMS, **params))
    events = list(engine.stream(replace(request, traces=True)))
    live = LiveRun(3)
    pieces = [live.take(event.news) for event in events if isinstance(event, Traced)]
    return pieces, events[-1].answer.trace, events[-1]


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
@pytest.mark.parametrize("max_threads", [2, 64])
def test_the_pieces_of_a_live_run_are_its_stored_form(text: str, max_threads: int) -> None:
    pieces, trace, last = decoded(text, max_threads=max_threads)
    assert isinstance(last, Finished)
    live = put_together(pieces)
    stored = without_its_end(run_data(trace, "run"))
    assert live == {key: stored[key] for key in live}


def traced(pieces: list[dict[str, Any]], kind: str, sample: int = 0) -> list[Any]:
    """Return the runs, or their news, in the events of a kind."""
    told = [one for one in pieces if one.get("pasta", {}).get("kind") == kind]
    key = {"traced": "news", "finished": "run"}[kind]
    return [one["pasta"].get(key) for one in told if one["choices"][0]["index"] == sample]


@pytest.mark.parametrize("trace", [True, False])
def test_a_stream_of_events_tells_the_trace_only_if_it_was_asked_for(trace: bool) -> None:
    asked = {"strategy": "pasta", "stream": "events", "trace": trace}
    pieces = streamed(post("/v1/chat/completions", {**CHAT, "stream": True, "pasta": asked}))
    assert bool(traced(pieces, "traced")) == trace
    (whole,) = traced(pieces, "finished")
    if trace:
        live, stored = put_together(traced(pieces, "traced")), without_its_end(whole)
        assert live == {key: stored[key] for key in live}


@pytest.mark.parametrize("strategy", ["pasta", "sequential", "sot"])
def test_the_samples_of_a_model_are_told_as_they_are_stored(strategy: str) -> None:
    engine = TorchEngine(loaded("llama"), pool_tokens=4096, captures=False)
    app = create_app(LocalBackend(Pasta(engine), "tiny"))
    asked = {"strategy": strategy, "stream": "events", "trace": True, "max_threads": 3}
    params = {"max_tokens": 80, "temperature": 1.0, "seed": 5, "n": 2, "stream": True}
    pieces = streamed(post("/v1/chat/completions", {**CHAT, **params, "pasta": asked}, app=app))
    for sample in range(2):
        live = put_together(traced(pieces, "traced", sample))
        stored = without_its_end(traced(pieces, "finished", sample)[0])
        assert live == {key: stored[key] for key in live}
    if strategy == "pasta":
        assert any(token["text"] == PROMISE_OPEN for token in live["tokens"])


def test_the_models_strategies_and_the_limits_of_a_request_are_listed() -> None:
    recipe = ServeRecipe(limits=Bounds(tokens=77))
    about = ask("GET", "/v1/models", app=create_app(scripted(), recipe)).json()["data"][0]["pasta"]
    assert about["strategies"] == ["pasta", "sequential"]
    assert about["limits"]["tokens"] == 77


def test_a_model_lists_what_it_answers_by_and_nothing_that_would_fall_back_or_fail() -> None:
    model = Pasta(TorchEngine(loaded("llama"), pool_tokens=256, captures=False))
    app = create_app(LocalBackend(model, "tiny"))
    about = ask("GET", "/v1/models", app=app).json()["data"][0]["pasta"]
    assert about["strategies"] == [
        *("pasta", "sequential", "sot", "prompt-lookup", "pasta-prompt-lookup")
    ]
    assert set(STRATEGIES) - set(about["strategies"]) == {"apar"}
    for name in ("apar", "quick"):
        reply = post("/v1/chat/completions", {**CHAT, "pasta": {"strategy": name}}, app=app)
        assert reply.status_code == 400
        message = f"strategy '{name}' is not offered; one of pasta, sequential, sot, "
        assert reply.json()["error"]["message"].startswith(message)
    assert about["strategy"] == "pasta"
    assert about["device"] == "cpu"
    assert "quality" not in about


@pytest.mark.parametrize(
    ("taught", "name", "strategy", "quality"),
    [
        ("pasta", "builtin", "pasta", "small, often wrong"),
        ("apar", "pasta-1.5b", "sequential", None),
        (None, "tiny", "sequential", None),
    ],
)
def test_the_strategy_and_the_quality_listed_are_those_of_the_model(
    taught: str | None, name: str, strategy: str, quality: str | None
) -> None:
    model = replace(loaded("gemma"), name=name, trained_strategy=taught or "pasta")
    if taught is None:
        model.vocabulary = Vocabulary(model.vocabulary.tokenizer)
    backend = LocalBackend(Pasta(TorchEngine(model, pool_tokens=256, captures=False)), "served")
    about = ask("GET", "/v1/models", app=create_app(backend)).json()["data"][0]["pasta"]
    assert (about["strategy"], about.get("quality")) == (strategy, quality)
    assert strategy in about["strategies"]
    asked = {**CHAT, "max_tokens": 4, "pasta": {"trace": True}}
    reply = post("/v1/chat/completions", asked, app=create_app(backend)).json()
    assert reply["pasta"]["choices"][0]["trace"]["strategy"] == strategy
    other = "pasta-prompt-lookup" if strategy == "sequential" else "apar"
    with pytest.raises(UsageError, match=f"'{other}' is not offered by served"):
        create_app(backend, ServeRecipe(strategy=other))
