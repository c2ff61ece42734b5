"""The data of the page against the interpreter's own entries; and which runs compare."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from pasta_lm.engines.request import SamplingParams
from pasta_lm.engines.scripted import ScriptedEngine
from pasta_lm.interpreter.placement import Entries
from pasta_lm.interpreter.trace import Kind, Role, ThreadRecord, Trace
from pasta_lm.language import parse
from pasta_lm.view.run_data import RunData, comparison_key, cut_at, run_data
from tests.reference import is_visible
from tests.serve.runs import FLAT, NESTED, PARAMS, answered, sequential, wide

TEXTS = {"flat": FLAT, "nested": NESTED, "wide": wide(20), "no block": "only main writes"}
of_every_run = pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())


def entries_of(text: str, patch: pytest.MonkeyPatch) -> tuple[Trace, Entries]:
    """Return a trace, and the entries that the engine kept while it wrote the trace."""
    kept: list[Entries] = []
    of_prompt = Entries.of_prompt

    def keep(prompt: list[int]) -> Entries:
        kept.append(of_prompt(prompt))
        return kept[0]

    patch.setattr(Entries, "of_prompt", keep)
    engine = ScriptedEngine(parse(text, "annotator", max_depth=2))
    return engine.answer("a prompt here", PARAMS).trace, kept[0]


def counts(data: RunData, thread: int, index: int) -> dict[int, int]:
    rows = data["threads"][thread]["seen"]
    assert rows is not None
    row = [one for one in rows if one["index"] <= index][-1]
    assert row["prompt"] == 3
    return {**row["threads"], thread: index}


@of_every_run
def test_a_token_sees_on_the_page_exactly_the_entries_that_its_query_saw(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace, entries = entries_of(text, monkeypatch)
    data = run_data(trace, "run")
    ends = {one["forks"]: i for i, one in enumerate(data["tokens"]) if one["forks"] is not None}
    for thread in trace.threads:
        tokens = trace.tokens_of(thread.id)
        for index, token in enumerate(tokens):
            before = tokens[index - 1] if index else None
            if before is None and thread.parent is not None:
                before = trace.tokens[ends[thread.id]]
            query = 2 if before is None else before.slot
            assert query is not None, token
            shown = counts(data, thread.id, index)
            for other in trace.threads:
                for number, entry in enumerate(trace.tokens_of(other.id)):
                    is_seen = entry.slot is not None and is_visible(entries, query, entry.slot)
                    assert is_seen == (number < shown.get(other.id, 0)), (token, entry)


def written(data: RunData, thread: int) -> Iterator[str]:
    for token in data["tokens"]:
        if token["thread"] == thread:
            yield token["text"]
            if token["forks"] is not None:
                yield from written(data, token["forks"])


@of_every_run
def test_the_tags_are_those_of_the_written_form(text: str) -> None:
    answer = answered(text)
    assert "".join(written(run_data(answer.trace, "run"), 0)) == answer.program


@of_every_run
def test_the_critical_path_is_one_chain_of_every_depth(text: str) -> None:
    trace = answered(text).trace
    data = run_data(trace, "run")
    marked = [
        one for one, shown in zip(trace.tokens, data["tokens"], strict=True) if shown["critical"]
    ]
    # The <async> of a block is as deep as its promise's end.
    opening = [trace.tokens_of(thread.id)[0] for thread in trace.threads[1:]]
    forced = [one for one in marked if one.role is Role.TAG and one in opening]
    rest = sorted(one.depth or 0 for one in marked if one not in forced)
    assert rest == list(range(1, trace.critical_path + 1))


@of_every_run
def test_a_run_of_one_thread_and_one_that_a_limit_cut_are_shown(text: str) -> None:
    assert len(run_data(sequential(text).trace, "run")["threads"]) == 1
    engine = ScriptedEngine(parse(text, "annotator", max_depth=2))
    for max_tokens in range(1, 12):
        params = PARAMS.__class__(max_tokens=max_tokens)
        data = run_data(engine.answer("a prompt here", params).trace, "run")
        assert json.loads(json.dumps(data))["threads"]


@of_every_run
def test_a_thread_without_a_promise_has_no_visibility_to_show(text: str) -> None:
    trace = sequential(text).trace
    trace.threads.append(ThreadRecord(1, 0, "a point", None))
    assert run_data(trace, "run")["threads"][1]["seen"] is None


ENGINE = ScriptedEngine(parse(FLAT, "annotator"))


def test_whole_runs_of_the_same_text_compare_and_others_do_not() -> None:
    parallel, alone = answered(FLAT).trace, sequential(FLAT).trace
    assert comparison_key(parallel) == comparison_key(alone) is not None
    assert comparison_key(parallel) != comparison_key(answered(NESTED).trace)
    assert comparison_key(parallel) != comparison_key(replace(alone, model="another"))
    assert comparison_key(parallel) != comparison_key(replace(alone, kind=Kind.REPLAYED))

    trace = ENGINE.answer("a prompt", SamplingParams(max_tokens=9)).trace
    assert cut_at(trace) == trace.num_content_tokens
    assert comparison_key(trace) is None
    assert comparison_key(parallel, "{}") == comparison_key(alone, "{}") != comparison_key(alone)
