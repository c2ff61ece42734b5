"""Runs of the scripted engine for the tests of the page."""

from __future__ import annotations

from dataclasses import replace

from pasta_lm.engines.request import Answer, SamplingParams
from pasta_lm.engines.scripted import ScriptedEngine
from pasta_lm.language import parse

FLAT = (
    'Two.<async topic="first part">alpha beta gamma</async> And'
    '<async topic="second part">delta epsilon</async><sync/>Both done.'
)
NESTED = (
    'Top<async topic="outer">one<async topic="inner">two three</async> four</async>'
    ' mid<async topic="next">five six seven</async><sync/>seen<async topic="late">eight</async> end'
)
PARAMS = SamplingParams(max_tokens=100_000, max_threads=64)
HOSTILE = (
    "<script>document.title = 'taken'</script><img src=x onerror=alert(1)> &amp; "
    "\u202eesrever\u202c "
)


def answered(text: str) -> Answer:
    return ScriptedEngine(parse(text, "annotator", max_depth=2)).answer("a prompt here", PARAMS)


def sequential(text: str) -> Answer:
    engine = ScriptedEngine(parse(text, "annotator", max_depth=2))
    request = replace(engine.request("a prompt here", PARAMS), strategy="sequential", forks=False)
    return engine.generate([request])[0][0]


def wide(num_threads: int) -> str:
    blocks = (
        f'<async topic="part {one}">{"some words " * (3 + one % 7)}</async>'
        for one in range(num_threads)
    )
    return f"All of these.{''.join(blocks)}<sync/>The end."
