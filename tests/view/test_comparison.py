"""The rule of comparisons: the same text to its end, by the same model."""

from __future__ import annotations

from dataclasses import replace

from pasta_lm.engines.request import SamplingParams
from pasta_lm.engines.scripted import ScriptedEngine
from pasta_lm.interpreter.trace import Kind
from pasta_lm.language import parse
from pasta_lm.view.run_data import comparison_key, cut_at, speed_figures
from tests.serve.runs import FLAT, NESTED, answered, sequential

ENGINE = ScriptedEngine(parse(FLAT, "annotator"))


def test_runs_of_the_same_text_compare_and_others_do_not() -> None:
    parallel, alone = answered(FLAT).trace, sequential(FLAT).trace
    assert comparison_key(parallel) == comparison_key(alone) is not None
    assert comparison_key(parallel) != comparison_key(answered(NESTED).trace)
    assert comparison_key(parallel) != comparison_key(replace(alone, model="another"))
    assert comparison_key(parallel) != comparison_key(replace(alone, kind=Kind.REPLAYED))


def test_a_run_that_a_limit_cut_compares_with_none() -> None:
    trace = ENGINE.answer("a prompt", SamplingParams(max_tokens=9)).trace
    assert cut_at(trace) == trace.num_content_tokens
    assert comparison_key(trace) is None


def test_one_thread_has_no_speedup_also_where_a_limit_cut_it() -> None:
    for max_tokens in (1, 2, 5, 100):
        request = ENGINE.request("a prompt", SamplingParams(max_tokens=max_tokens))
        trace = ENGINE.generate([replace(request, forks=False)])[0][0].trace
        figures = speed_figures(trace, trace.num_content_tokens)
        assert figures["parallelism"] == figures["theoretical_speedup"] == 1
