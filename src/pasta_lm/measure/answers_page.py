"""Answers of both systems side by side, as one HTML file that needs nothing else."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from html import escape

from pasta_lm.engines.record import AnswerRecord
from pasta_lm.errors import InputError
from pasta_lm.journal import Row
from pasta_lm.measure.instructions import PROMPTS, SCORED, InstructionRun, answers_of
from pasta_lm.measure.prompt_sets import SETS, read_sets
from pasta_lm.strategies import pasta, sequential

MAX_PROMPTS = 60
"""Of each set."""
TAG = re.compile(r"&lt;(?:promise .*?/|/?async|sync/)&gt;")
HEAD = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Answers side by side</title>
<style>
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 80em; padding: 0 1em; }
section { border-top: 1px solid #bbb; padding: 1em 0; }
.both { display: grid; grid-template-columns: 1fr 1fr; gap: 2em; }
.answer, .prompt { white-space: pre-wrap; overflow-wrap: anywhere; }
.prompt { font-weight: 600; }
small { color: #555; }
b { color: #a03; font-weight: 500; font-size: 85%; }
</style>
<h1>Answers side by side</h1>
"""


def answers_page(run: InstructionRun, sets: Collection[str] = SETS) -> str:
    """Return the page of the first prompts of some sets.

    A prompt whose file is not there is shown by its id.
    """
    baseline, taught = run.settings.systems
    about = f"Left: {baseline.model}, sequentially. Right: {taught.model}, with its tags."
    return f"{HEAD}<p>{escape(about)}</p>\n" + "".join(_sections(run, sets)) + "</html>\n"


def _sections(run: InstructionRun, sets: Collection[str]) -> Iterator[str]:
    scored, texts = run.rows(SCORED), _texts(run)
    base, ours = (answers_of(scored, name) for name in (sequential.NAME, pasta.NAME))
    for name in sets:
        shared = [
            row
            for row in run.rows(PROMPTS)
            if row["set"] == name and row["id"] in base and row["id"] in ours
        ]
        if shared:
            yield f"<h2>{name}</h2>\n"
        for row in shared[:MAX_PROMPTS]:
            key = row["id"]
            yield _section(row, texts.get(key), base[key], ours[key])


def _section(row: Row, prompt: str | None, base: AnswerRecord, ours: AnswerRecord) -> str:
    parts = f", asks for {row['parts']}" if row["parts"] else ""
    speedup = f"theoretical speedup {ours.theoretical_speedup(base):.2f}"
    program = TAG.sub(r"<b>\g<0></b>", escape(ours.program))
    steps = f", {ours.critical_path} steps"
    return (
        f'<section id="{escape(row["id"])}">\n'
        f"<small>{escape(row['id'])}{parts}; {speedup}</small>\n"
        f'<p class="prompt">{escape(prompt or "(the prompt is not stored)")}</p>\n'
        f'<div class="both">\n{_side(escape(base.text), base)}{_side(program, ours, steps)}'
        "</div>\n</section>\n"
    )


def _side(text: str, answer: AnswerRecord, more: str = "") -> str:
    ended = f"{escape(answer.finish_reason)}, {answer.num_content_tokens} tokens{more}"
    return f'<div><div class="answer">{text}</div><small>{ended}</small></div>\n'


def _texts(run: InstructionRun) -> dict[str, str]:
    if run.prompts:
        return {item.id: item.text for item in run.prompts}
    try:
        return {item.id: item.text for item in read_sets(run.settings.sets)}
    except InputError:
        return {}
