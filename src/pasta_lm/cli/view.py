"""``pasta view``: show a trace as a picture or as a page, or convert it for Perfetto."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pasta_lm.cli.flags import option
from pasta_lm.cli.terminal import console, print_facts, read_text, say, write_text
from pasta_lm.cli.thread_view import picture, summary
from pasta_lm.errors import InputError, UsageError
from pasta_lm.interpreter.trace import Trace
from pasta_lm.view.layout import to_perfetto
from pasta_lm.view.page import page_of
from pasta_lm.view.run_data import run_data


def view(
    file: Annotated[str, typer.Argument(metavar="TRACE.json", help="From `pasta run --trace`.")],
    perfetto: Annotated[
        Path | None, option("--perfetto OUT.json", "Write the trace for ui.perfetto.dev.")
    ] = None,
    html: Annotated[
        Path | None, option("--html OUT.html", "Write a page: timeline, answer and written form.")
    ] = None,
    beside: Annotated[
        list[str] | None, option("--beside TRACE.json", "With --html: another run; repeatable.")
    ] = None,
) -> None:
    """Show a trace: when each thread decoded and when it waited."""
    if beside and html is None:
        raise UsageError("--beside belongs to --html", hint="add --html OUT.html")
    trace = _read(file)
    if perfetto is not None:
        write_text(perfetto, to_perfetto(trace))
        say(f"wrote {perfetto}; open it at https://ui.perfetto.dev")
    if html is not None:
        traces = [*map(_read, beside or ()), trace]
        write_text(html, page_of([run_data(run) for run in traces]))
        say(f"wrote {html}; open it in a browser")
    if perfetto is None and html is None:
        _print(trace)


def _read(file: str) -> Trace:
    try:
        trace = Trace.from_json(read_text(file))
        picture(trace, console(sys.stderr))  # so that damage is found here
        run_data(trace)
        return trace
    except (LookupError, TypeError, ValueError) as exc:
        raise InputError(f"{file}: the trace is damaged: {exc}") from exc
    except InputError as exc:
        where = "" if file in exc.message else f"{file}: "
        hint = exc.hint or "name a trace that `pasta run --trace FILE` wrote"
        raise InputError(where + exc.message, hint=hint) from exc


def _print(trace: Trace) -> None:
    tokens = f"{trace.num_tokens} in all, {trace.num_content_tokens} content tokens"
    again = f", {trace.num_recomputed} fed again at syncs" if trace.num_recomputed else ""
    facts = {
        "model": f"{trace.model} ({trace.engine}, {trace.kind.value})",
        "strategy": f"{trace.strategy}, positions {trace.positions}, join {trace.join}",
        "tokens": f"{tokens}, {trace.num_prompt_tokens} in the prompt{again}",
        "passes": f"{trace.forward_passes} after the prefill ({trace.prefill_s:.3f} s)",
        "ended by": f"{trace.finish_reason}, {trace.num_illegal} illegal tags",
    }
    print_facts([*facts.items()])
    out = console(sys.stdout)
    out.print()
    out.print(picture(trace, out))
    out.print(f"\n{summary(trace)}", soft_wrap=True)
