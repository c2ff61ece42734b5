"""Strategies besides pasta decode on a stock server what they decode locally."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pasta_lm.engines.request import SamplingParams, StructuredOutputs
from pasta_lm.engines.servers.dialects import DIALECTS
from pasta_lm.errors import UsageError
from pasta_lm.models.folder import FILE_NAME
from pasta_lm.parts.fields import Part
from pasta_lm.strategies.model import Pasta, Servers
from tests.learn.train.recipes import save_tiny
from tests.stock import tokens_by_thread
from tests.stock_model import serving

PROMPTS = ("Name three rivers.", "How do I sleep better? Give tips.")
PARAMS = SamplingParams(max_tokens=60, max_tokens_per_thread=12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(save_tiny(tmp_path_factory.mktemp("models") / "model"))
    config = json.loads((folder / FILE_NAME).read_text())
    exact = {**config, "positions": "continue", "join": "recompute"}
    (folder / FILE_NAME).write_text(json.dumps(exact))
    return folder


@pytest.fixture(scope="module")
def models(folder: Path) -> Iterator[tuple[Pasta, Pasta]]:
    """Return a model in the local engine, and the same on a server."""
    with serving(folder) as server:
        served = Servers(addresses=server.url, allow_inexact=True).holding(folder)
        yield Pasta.from_pretrained(folder, dtype="float32", pool_tokens=4096), served


@pytest.mark.parametrize("strategy", ["sequential", "prompt-lookup", "sot"])
def test_a_strategy_decodes_the_same_here_and_there(
    models: tuple[Pasta, Pasta], strategy: str
) -> None:
    ends = strategy == "sot"  # random weights end at once, and a skeleton goes on behind its end
    params = replace(PARAMS, ignore_eos=not ends)
    num_threads = 0
    for prompt in PROMPTS:
        one, other = (model.generate(prompt, params, strategy=strategy) for model in models)
        assert one.trace.strategy == other.trace.strategy
        assert one.finish_reason == other.finish_reason
        if one.finish_reason == "stop":
            assert one.program == other.program
        here, there = tokens_by_thread(one), tokens_by_thread(other)
        for thread in here.keys() & there.keys():
            # A limit on all tokens cuts threads that have clocks of their own elsewhere.
            length = min(len(here[thread]), len(there[thread]))
            assert here[thread][:length] == there[thread][:length]
            num_threads += length > 0
    assert num_threads > 0
    local, served = models
    assert local.strategies == served.strategies


FIELDS: dict[str, Any] = {
    "properties": {
        "hotel": {"enum": ["Aurora", 'the "Best"']},
        "nights": {"type": "integer", "minimum": 1, "maximum": 30},
        "guest": {"properties": {"name": {"type": "string", "maxLength": 4}}},
        "beds": {"type": "array", "items": {"enum": [1, 2]}, "minItems": 1, "maxItems": 2},
    }
}
HOLES = (
    Part(name="who", lead="Who: ", stop="e", max_tokens=9),
    Part(name="when", lead=". When: ", regex="[0-9]{2}", after=("who",)),
    Part(name="why", lead=". Why: ", max_tokens=6, after=("when",)),
)


@pytest.mark.parametrize("max_favoured", [0, 1024])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_parts_and_schemas_decode_the_same_here_and_there(
    folder: Path,
    models: tuple[Pasta, Pasta],
    dialect: str,
    max_favoured: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("llguidance")
    monkeypatch.setattr("pasta_lm.engines.servers.streamed_response.MAX_FAVOURED", max_favoured)
    waits = {"beds": ["hotel"], "guest": ["nights", "beds"]}
    structure = StructuredOutputs(json={"enum": [["a", 1], "b"]})
    with serving(folder, dialect) as server:
        served = Servers(addresses=server.url).holding(folder)
        fields = [m.fill("Book.", FIELDS, after=waits) for m in (models[0], served)]
        holes = [m.fill("Book.", parts=HOLES) for m in (models[0], served)]
        params = replace(PARAMS, structured_outputs=structure)
        whole = [m.generate("Book.", params) for m in (models[0], served)]
        asked = [m.ask("Ada came.", ["Who?", "Why?"], max_tokens=20) for m in (models[0], served)]
    for here, there in (fields, holes):
        assert here.unfinished == there.unfinished == ()
        assert (here.data, here.text) == (there.data, there.text)
        assert tokens_by_thread(here.answer) == tokens_by_thread(there.answer)
        assert there.trace.critical_path == here.trace.critical_path
    assert whole[0].text == whole[1].text
    assert [answer.data for answer in asked][0] == asked[1].data


def test_a_schema_that_cannot_be_compiled_sends_nothing(models: tuple[Pasta, Pasta]) -> None:
    pytest.importorskip("llguidance")
    with pytest.raises(UsageError, match="no such type 'foo'"):
        models[1].fill("Book.", {"properties": {"a": {"type": "foo"}}})


def test_a_model_that_is_closed_gives_up_what_was_submitted(models: tuple[Pasta, Pasta]) -> None:
    for model in models:
        with model:
            model.engine.submit(model.request(PROMPTS[0], replace(PARAMS, ignore_eos=True)))
            assert model.engine.has_work
        assert not model.engine.has_work
