"""Runs as files: a page that loads nothing, an animated SVG, and JSON for ui.perfetto.dev.

Importing this module lets a notebook show traces and answers in a frame. The page is ``static/`` as
one file, with its styles, modules and runs.

Modules follow three rules, so that joining them needs no parser: an import is one line of names
from a neighbour, an export stands before its declaration, and top-level names differ everywhere.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from functools import cache
from html import escape
from pathlib import Path
from string import Template

from pasta_lm.interpreter.trace import Trace
from pasta_lm.view.run_data import Edge, LiveRun, RunData, run_data

STATIC = Path(__file__).with_name("static")

_IMPORT = re.compile(r'^import \{ [\w, ]+ \} from "\./(\w+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:class|function|const) )", re.MULTILINE)


def page_of(runs: Sequence[RunData]) -> str:
    """Return a page of HTML that shows runs and loads nothing.

    Its policy allows this script and these styles, by hash, and no connection, image, frame, form
    or text that is parsed as HTML.
    """
    styles, script = (STATIC / "page.css").read_text("utf-8"), joined_modules()
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(styles)}'; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
    )
    # A browser reads no end of the script in ASCII without "<", whatever the model wrote.
    data = json.dumps(runs, separators=(",", ":")).replace("<", "\\u003c")
    page = (STATIC / "index.html").read_text("utf-8")
    for line, replacement in {
        '<meta charset="utf-8">\n': '<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n',
        '<link rel="icon" href="icon.svg">\n': "",
        '<link rel="stylesheet" href="page.css">\n': f"<style>{styles}</style>\n",
        '<script type="module" src="main.js"></script>\n': (
            f'<script type="application/json" id="runs">{data}</script>\n'
            f'<script type="module">{script}</script>\n'
        ),
    }.items():
        assert line in page, f"index.html lacks {line!r}"
        page = page.replace(line, replacement, 1)
    return page


@cache
def joined_modules() -> str:
    """Return a module with all that it imports, each once and before its use, as one module."""
    joined: dict[str, str] = {}

    def add(name: str) -> None:
        if name in joined:
            return
        text = (STATIC / name).read_text("utf-8")
        joined[name] = ""  # a circle of imports ends here
        for imported in _IMPORT.findall(text):
            add(imported)
        del joined[name]
        joined[name] = _EXPORT.sub("", _IMPORT.sub("", text))

    add("main.js")
    return "\n".join(joined.values())


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def to_perfetto(trace: Trace) -> str:
    """Return the trace as JSON for Perfetto: one track a thread, arrows for forks and syncs."""
    ends_us = [1e6 * end_s for end_s in (trace.prefill_s, *trace.step_s)]

    def start_us(step: int) -> float:
        return ends_us[min(max(0, step), len(ends_us) - 1)]  # the end of the step before it

    def arrow(kind: str, number: int | str, edge: Edge) -> list[dict[str, object]]:
        flow: dict[str, object] = {"name": kind, "cat": kind, "id": number, "pid": 1}
        return [
            {**flow, "ph": "s", "tid": edge.source, "ts": start_us(edge.start)},
            {**flow, "ph": "f", "bp": "e", "tid": edge.target, "ts": start_us(edge.end)},
        ]

    events = [_name("process_name", 0, trace.model or "pasta-lm")]
    for thread in trace.threads:
        title = "main" if thread.parent is None else f"{thread.id} {thread.topic}"
        events.append(_name("thread_name", thread.id, title))
        for token in trace.tokens_of(thread.id):
            if (step := token.fed_step) is not None:
                facts = {"depth": token.depth, "position": token.position, "slot": token.slot}
                piece = {"name": token.text or token.role.value, "cat": token.role.value}
                duration_us = max(0.0, start_us(step + 1) - start_us(step))
                slice_ = {"pid": 1, "tid": thread.id, "ts": start_us(step), "dur": duration_us}
                events.append({"ph": "X", **piece, **slice_, "args": facts})
    run = LiveRun.of(trace)
    for edge in run.forks:
        events += arrow("fork", edge.target, edge)
    for number, edge in enumerate(run.joins):
        inside = edge._replace(start=edge.start - 1)  # an arrow starts inside a slice
        events += arrow("sync", f"sync{number}-{edge.source}", inside)
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, ensure_ascii=False)


def _name(kind: str, track: int, name: str) -> dict[str, object]:
    return {"ph": "M", "name": kind, "pid": 1, "tid": track, "args": {"name": name}}


def to_svg(trace: Trace) -> str:
    """Return a picture of the bars that plays the passes; without motion it shows all of them."""
    run = LiveRun.of(trace)
    lanes, passes = [lane for lane in run.lanes if lane.spans], run.num_passes
    left, scale, covered = 130, 758 / passes, 10 + 26 * len(lanes)
    rows = []
    for lane, top in zip(lanes, range(10, covered, 26), strict=True):
        name = lane.thread.topic or "main"
        name = escape(name if len(name) < 17 else f"{name[:15]}\u2026")
        rows.append(f'<text x="12" y="{top}" dy="16">{name}</text>')
        for number, first, stop in lane.spans:
            corner = f'x="{left + first * scale:.1f}" y="{top}" rx="3" height="22"'
            style = f'width="{(stop - first) * scale - 1:.1f}" style="--hue: {number * 137 + 73}"'
            rows.append(f'<rect class="bar" {corner} {style}/>')
        for token in trace.tokens_of(lane.thread.id):
            text, step = token.text.strip(), token.fed_step
            if step is not None and text and len(text) * 7.5 < scale:
                middle = f'x="{left + (step + 0.5) * scale:.1f}" y="{top}" dy="16"'
                rows.append(f'<text class="paper token" {middle}>{escape(text)}</text>')
    tokens = f"{round(trace.parallelism * trace.critical_path)} tokens of text"
    title = f"{tokens} in {trace.critical_path} steps, {trace.parallelism:.1f} a step"
    shape = {"covered": covered, "height": covered + 30, "shift": 900 - left, "passes": passes}
    shape["seconds"] = min(9, 2 + passes // 2)
    title, drawn = escape(f"{trace.model}: {title}"), "\n".join(rows)
    template = STATIC.joinpath("bars.svg").read_text("utf-8")
    return Template(template).substitute(shape, title=title, rows=drawn)


def frame_html(trace: Trace) -> str:
    """Return the page in a frame that may run its script and reach nothing of the notebook."""
    page = escape(page_of([run_data(trace)]))
    style = "width:100%;height:36em;border:0"
    return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{page}"></iframe>'


Trace.picture = frame_html
