"""A trace as a static picture for notebooks: HTML with one SVG, no script, nothing loaded.

All text of a model is escaped, and isolated so that it cannot change the direction of other text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from itertools import pairwise

from pasta_lm.interpreter.trace import Role, Trace
from pasta_lm.view.layout import Edge, RunLayout, layout

# Okabe and Ito, "Color Universal Design": told apart with any colour vision. Main has none.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
WIDTH, LABEL_WIDTH, ROW = 900, 170, 22  # units of the SVG
MAX_LABEL = 24  # characters


def picture_html(trace: Trace, parts: Iterable[tuple[int, str]] | None = None) -> str:
    """Return the picture of a trace with the text below it.

    Bars are steps in which a thread fed tokens, dashed lines its waiting, thin lines forks and
    syncs, the dark line under the bars the critical path.
    ``parts`` is the answer in reading order, each text with the number of its thread; without
    them the text of each thread stands on a line of its own.
    """
    body = _threads(trace) if parts is None else "".join(_part(*part) for part in parts)
    return (
        '<div style="font-family:sans-serif;max-width:60em">'
        f"{_svg(trace)}"
        f'<div style="font-size:85%;opacity:.75">{escape(_figures(trace))}</div>'
        '<div style="white-space:pre-wrap;overflow-wrap:anywhere;margin-top:.6em">'
        f"{body}</div></div>"
    )


def _figures(trace: Trace) -> str:
    path = f"critical path {trace.critical_path} of {trace.num_tokens} tokens"
    name = " · ".join(part for part in (trace.model, trace.strategy, trace.kind.value) if part)
    return f"{name}: {path}, parallelism {trace.parallelism:.2f}"


def _svg(trace: Trace) -> str:
    places = layout(trace)
    height = ROW * (len(places.lanes) + 1)
    marks = [*_lines(places), *_rows(places)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="100%" '
        f'role="img" aria-label="{escape(_figures(trace))}" font-size="12">{"".join(marks)}'
        f'<text x="{LABEL_WIDTH}" y="{height - 6}" fill="currentColor" opacity=".6">step 0</text>'
        f'<text x="{WIDTH}" y="{height - 6}" fill="currentColor" opacity=".6" text-anchor="end">'
        f"{trace.forward_passes}</text></svg>"
    )


def _x(places: RunLayout, step: int) -> float:
    share = step / places.num_passes
    return round(LABEL_WIDTH + (WIDTH - LABEL_WIDTH) * share, 1)


def _rows(places: RunLayout) -> Iterator[str]:
    for row, lane in enumerate(places.lanes):
        thread = lane.thread
        label = "main" if thread.parent is None else f"{thread.id} {thread.topic or ''}".strip()
        shown = label if len(label) <= MAX_LABEL else f"{label[: MAX_LABEL - 1]}…"
        colour, top = _colour(thread.id), ROW * row
        yield f"<g><title>{escape(label)}: {thread.num_tokens} tokens</title>"
        style = f'fill="{colour}" style="unicode-bidi:isolate"'
        yield f'<text x="0" y="{top + 15}" {style}>{escape(shown)}</text>'
        for span in lane.spans:
            x, end = _x(places, span.first), _x(places, span.stop)
            place = f'x="{x}" y="{top + 4}" width="{end - x:.1f}" height="10"'
            yield f'<rect {place} fill="{colour}" opacity=".75"/>'
        for before, after in pairwise(lane.spans):
            pause = Edge(row, before.stop, row, after.first)
            yield _line(places, pause, colour, "4 3")
        yield "</g>"


def _lines(places: RunLayout) -> Iterator[str]:
    for edge in places.forks:
        yield _line(places, edge, _colour(edge.target))
    for edge in places.joins:
        yield _line(places, edge, _colour(edge.source), "2 3")
    for thread, first, stop in places.critical:
        yield _line(places, Edge(thread, first, thread, stop), "currentColor", width=2, y=16)


def _line(
    places: RunLayout, edge: Edge, colour: str, dashes: str = "", *, width: int = 1, y: int = 9
) -> str:
    start = f'x1="{_x(places, edge.start)}" y1="{ROW * edge.source + y}"'
    end = f'x2="{_x(places, edge.end)}" y2="{ROW * edge.target + y}"'
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<line {start} {end} stroke="{colour}" stroke-width="{width}"{dashed}/>'


def _colour(thread: int) -> str:
    return COLOURS[(thread - 1) % len(COLOURS)] if thread else "currentColor"


def _part(thread: int, text: str) -> str:
    if not thread:
        return f'<span style="unicode-bidi:isolate">{escape(text)}</span>'
    colour = _colour(thread)
    style = f"unicode-bidi:isolate;border-bottom:2px solid {colour};background:{colour}22"
    return f'<span title="thread {thread}" style="{style}">{escape(text)}</span>'


def _threads(trace: Trace) -> str:
    texts: dict[int, list[str]] = {thread.id: [] for thread in trace.threads}
    for token in trace.tokens:
        if token.role is Role.CONTENT:
            texts[token.thread].append(token.text)
    parts = ((number, "".join(pieces)) for number, pieces in texts.items())
    return "".join(f"<div>{_part(number, text)}</div>" for number, text in parts if text)


Trace.picture = picture_html
