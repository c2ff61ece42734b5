"""An answer in a notebook: the page of its run in a frame of its own, which loads nothing."""

from __future__ import annotations

from html import escape

from pasta_lm.interpreter.trace import Trace
from pasta_lm.view.page import page_of
from pasta_lm.view.run_data import run_data


def frame_html(trace: Trace) -> str:
    """Return the page in a frame that may run its script and reach nothing of the notebook."""
    page = escape(page_of([run_data(trace)]))
    style = "width:100%;height:36em;border:0"
    return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{page}"></iframe>'


Trace.picture = frame_html
