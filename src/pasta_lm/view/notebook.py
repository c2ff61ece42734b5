"""A trace as a static picture for notebooks: HTML with one SVG, no script, nothing loaded.

All text of a model is escaped, and isolated so that it cannot change the direction of other text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from itertools import pairwise

from pasta_lm.interpreter.trace import Trace

# Okabe and Ito, "Color Universal Design": told apart with any colour vision. Main has none.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
WIDTH, LABEL_WIDTH, ROW = 900, 170, 22  # units of the SVG
MAX_LABEL = 24  # characters


def picture_html(trace: Trace, parts: Iterable[tuple[int, str]] | None = None) -> str:
    """Return the picture of a trace with the text below it.

    A row shows the steps in which a thread fed tokens as bars, and its waiting as a dashed line.
    Thin lines are forks and syncs; the dark line under the bars is the critical path.

    Args:
        trace: The trace.
        parts: The answer in reading order, each text with the number of its thread; without
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
    name = " · ".join(one for one in (trace.model, trace.strategy, trace.kind.value) if one)
    return f"{name}: {path}, parallelism {trace.parallelism:.2f}"


def _svg(trace: Trace) -> str:
    height = ROW * (len(trace.threads) + 1)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="100%" '
        f'role="img" aria-label="{escape(_figures(trace))}" font-size="12">'
        f"{''.join(_arrows(trace))}{''.join(_rows(trace))}{''.join(_critical(trace))}"
        f'<text x="{LABEL_WIDTH}" y="{height - 6}" fill="currentColor" opacity=".6">step 0</text>'
        f'<text x="{WIDTH}" y="{height - 6}" fill="currentColor" opacity=".6" text-anchor="end">'
        f"{trace.forward_passes}</text></svg>"
    )


def _x(trace: Trace, step: int) -> float:
    """Return where a step begins."""
    share = step / max(1, trace.forward_passes)
    return round(LABEL_WIDTH + (WIDTH - LABEL_WIDTH) * share, 1)


def _rows(trace: Trace) -> Iterator[str]:
    fed: dict[int, set[int]] = {thread.id: set() for thread in trace.threads}
    for token in trace.tokens:
        if token.fed_step is not None and token.thread in fed:
            fed[token.thread].add(token.fed_step)
    for row, thread in enumerate(trace.threads):
        label = "main" if thread.parent is None else f"{thread.id} {thread.topic or ''}".strip()
        shown = label if len(label) <= MAX_LABEL else f"{label[: MAX_LABEL - 1]}…"
        colour, top = _colour(thread.id), ROW * row
        yield f"<g><title>{escape(label)}: {thread.num_tokens} tokens</title>"
        yield (
            f'<text x="0" y="{top + 15}" fill="{colour}" style="unicode-bidi:isolate">'
            f"{escape(shown)}</text>"
        )
        runs = list(_runs(sorted(fed[thread.id])))
        for first, stop in runs:
            x, end = _x(trace, first), _x(trace, stop)
            yield (
                f'<rect x="{x}" y="{top + 4}" width="{end - x:.1f}" height="10" '
                f'fill="{colour}" opacity=".75"/>'
            )
        for (_, stop), (first, _) in pairwise(runs):
            yield _line((_x(trace, stop), top + 9), (_x(trace, first), top + 9), colour, "4 3")
        yield "</g>"


def _runs(steps: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the runs of consecutive steps, each as its first step and the one after its last."""
    first = None
    for step, following in pairwise([*steps, -1]):
        first = step if first is None else first
        if following != step + 1:
            yield first, step + 1
            first = None


def _arrows(trace: Trace) -> Iterator[str]:
    """Yield a line for every fork and, dashed, for every thread that a sync joined."""
    rows = {thread.id: ROW * row + 9 for row, thread in enumerate(trace.threads)}
    threads = {thread.id: thread for thread in trace.threads}
    for thread in trace.threads:
        if thread.parent in rows and thread.start_step is not None:
            x = _x(trace, thread.start_step)
            yield _line((x, rows[thread.parent]), (x, rows[thread.id]), _colour(thread.id))
    for sync in trace.syncs:
        for joined in sync.joined if sync.step is not None and sync.thread in rows else ():
            if joined in rows:
                assert sync.step is not None
                last = threads[joined].end_step
                start = _x(trace, sync.step if last is None else last + 1), rows[joined]
                end = _x(trace, sync.step), rows[sync.thread]
                yield _line(start, end, _colour(joined), "2 3")


def _critical(trace: Trace) -> Iterator[str]:
    """Yield the marks of the critical path, found from its last token back."""
    rows = {thread.id: ROW * row + 16 for row, thread in enumerate(trace.threads)}
    steps: dict[int, list[int]] = {}
    for thread, step in _path(trace):
        steps.setdefault(thread, []).append(step)
    for thread, on_path in steps.items():
        for first, stop in _runs(sorted(set(on_path))):
            start, end = (_x(trace, first), rows[thread]), (_x(trace, stop), rows[thread])
            yield _line(start, end, "currentColor", width=2)


def _path(trace: Trace) -> Iterator[tuple[int, int]]:
    """Yield thread and step of each token of the critical path, the last one first.

    A token has the depth of the deepest token that it needs, plus one: that is the one before it
    in its thread, the last one of a joined thread, or the promise of its parent.
    """
    at = {
        (token.depth, token.thread): token.fed_step
        for token in trace.tokens
        if token.depth is not None and token.fed_step is not None
    }
    parents = {thread.id: thread.parent for thread in trace.threads}
    joined = {thread: set[int]() for thread in parents}
    for sync in trace.syncs:
        joined.setdefault(sync.thread, set()).update(sync.joined)
    depth = max((depth for depth, _ in at), default=0)
    thread = next((number for number in parents if (depth, number) in at), None)
    while thread is not None:
        yield thread, at[depth, thread]
        depth -= 1
        candidates = [thread, *sorted(joined.get(thread, ())), parents.get(thread)]
        thread = next((one for one in candidates if (depth, one) in at), None)


def _line(
    start: tuple[float, float],
    end: tuple[float, float],
    colour: str,
    dashes: str = "",
    *,
    width: float = 1,
) -> str:
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return (
        f'<line x1="{start[0]}" y1="{start[1]}" x2="{end[0]}" y2="{end[1]}" stroke="{colour}" '
        f'stroke-width="{width}"{dashed}/>'
    )


def _colour(thread: int) -> str:
    return COLOURS[(thread - 1) % len(COLOURS)] if thread else "currentColor"


def _part(thread: int, text: str) -> str:
    """Return a stretch of the answer; a block has the colour of its thread."""
    if not thread:
        return f'<span style="unicode-bidi:isolate">{escape(text)}</span>'
    colour = _colour(thread)
    style = f"unicode-bidi:isolate;border-bottom:2px solid {colour};background:{colour}22"
    return f'<span title="thread {thread}" style="{style}">{escape(text)}</span>'


def _threads(trace: Trace) -> str:
    """Return the text of each thread, a line each."""
    texts: dict[int, list[str]] = {thread.id: [] for thread in trace.threads}
    for token in trace.tokens:
        if token.role.value == "content" and token.thread in texts:
            texts[token.thread].append(token.text)
    parts = ((number, "".join(pieces)) for number, pieces in texts.items())
    return "".join(f"<div>{_part(number, text)}</div>" for number, text in parts if text)


Trace.picture = picture_html
