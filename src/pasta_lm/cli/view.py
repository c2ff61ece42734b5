"""``pasta view``: show a trace as a picture or as a page, or convert it for Perfetto."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pasta_lm.cli.flags import option
from pasta_lm.cli.tables import print_facts

if TYPE_CHECKING:
    from pasta_lm.interpreter.trace import TokenRecord, Trace

_PID = 1  # Perfetto wants a process


def view(
    file: Annotated[
        str, typer.Argument(metavar="TRACE.json", help="A trace that `pasta run --trace` wrote.")
    ],
    perfetto: Annotated[
        Path | None,
        option(
            "--perfetto",
            metavar="OUT.json",
            help="Write the trace for ui.perfetto.dev to this file.",
        ),
    ] = None,
    html: Annotated[
        Path | None,
        option(
            "--html",
            metavar="OUT.html",
            help="Write a page of HTML to this file: timeline, answer and written form, offline.",
        ),
    ] = None,
    beside: Annotated[
        list[str] | None,
        option(
            "--beside",
            metavar="TRACE.json",
            help="With --html: another run of the same prompt, shown above on one clock. May be "
            "repeated.",
        ),
    ] = None,
) -> None:
    """Show a trace: when each thread decoded and when it waited."""
    import sys

    from pasta_lm.cli.terminal import console, glyphs, write_text
    from pasta_lm.cli.thread_view import picture, summary
    from pasta_lm.errors import UsageError

    if beside and html is None:
        raise UsageError("--beside belongs to --html", hint="add --html OUT.html")
    trace = _read(file)
    if perfetto is not None:
        write_text(perfetto, to_perfetto(trace))
        typer.echo(f"pasta: wrote {perfetto}; open it at https://ui.perfetto.dev", err=True)
    if html is not None:
        write_text(html, _page([_read(one) for one in beside or ()], trace))
        typer.echo(f"pasta: wrote {html}; open it in a browser", err=True)
    if perfetto is not None or html is not None:
        return
    out = console(sys.stdout)
    print_facts(_facts(trace))
    out.print()
    out.print(picture(trace, out.width, glyphs(out)))
    out.print(f"\n{summary(trace)}", soft_wrap=True)


def _read(file: str) -> Trace:
    from pasta_lm.cli.terminal import read_text
    from pasta_lm.errors import InputError
    from pasta_lm.interpreter.trace import Trace

    try:
        return Trace.from_json(read_text(file))
    except InputError as exc:
        where = "" if file in exc.message else f"{file}: "
        hint = exc.hint or "name a trace that `pasta run --trace FILE` wrote"
        raise InputError(where + exc.message, hint=hint) from exc


def _page(others: list[Trace], trace: Trace) -> str:
    from pasta_lm.view.page import page_of
    from pasta_lm.view.run_data import run_data

    return page_of([run_data(one, one.strategy or "run") for one in (*others, trace)])


def _facts(trace: Trace) -> list[tuple[str, str]]:
    content = f"{trace.num_content_tokens} content tokens"
    prompt = f"{trace.num_prompt_tokens} in the prompt"
    again = f", {trace.num_recomputed} fed again at syncs" if trace.num_recomputed else ""
    return [
        ("model", f"{trace.model} ({trace.engine}, {trace.kind.value})"),
        ("strategy", f"{trace.strategy}, positions {trace.positions}, join {trace.join}"),
        ("tokens", f"{trace.num_tokens} in all, {content}, {prompt}{again}"),
        ("passes", f"{trace.forward_passes} after the prefill ({trace.prefill_s:.3f} s)"),
        ("ended by", f"{trace.finish_reason}, {trace.num_illegal} illegal tags"),
    ]


def to_perfetto(trace: Trace) -> str:
    """Return the trace as JSON for ui.perfetto.dev: one track a thread, arrows for fork and sync.

    Source: the "Trace Event Format" of chrome://tracing; times in microseconds.
    """
    events: list[dict[str, Any]] = [_name("process_name", 0, trace.model or "pasta-lm")]
    for thread in trace.threads:
        title = "main" if thread.parent is None else f"{thread.id} {thread.topic}"
        events.append(_name("thread_name", thread.id, title))
        tokens = trace.tokens_of(thread.id)
        events += [_token_slice(trace, token) for token in tokens if token.fed_step is not None]
        if thread.parent is not None and thread.start_step is not None:
            start = thread.parent, thread.start_step
            events += _arrow(trace, "fork", thread.id, start, (thread.id, thread.start_step))
    for index, sync in enumerate(trace.syncs):
        if sync.step is None:
            continue
        for child in sync.joined:
            end = child, trace.threads[child].end_step or 0
            place = sync.thread, sync.step
            events += _arrow(trace, "sync", f"sync{index}-{child}", end, place)
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, ensure_ascii=False)


def _name(kind: str, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": _PID, "tid": tid, "args": {"name": name}}


def _arrow(
    trace: Trace, kind: str, number: int | str, start: tuple[int, int], end: tuple[int, int]
) -> list[dict[str, Any]]:
    """Return an arrow between two places, each a thread and the step that begins there."""
    flow = {"name": kind, "cat": kind, "id": number, "pid": _PID}
    (tid_0, step_0), (tid_1, step_1) = start, end
    return [
        {**flow, "ph": "s", "tid": tid_0, "ts": _step_start_us(trace, step_0)},
        {**flow, "ph": "f", "bp": "e", "tid": tid_1, "ts": _step_start_us(trace, step_1)},
    ]


def _token_slice(trace: Trace, token: TokenRecord) -> dict[str, Any]:
    assert token.fed_step is not None
    start = _step_start_us(trace, token.fed_step)
    end = _step_start_us(trace, token.fed_step + 1)
    return {
        "ph": "X",
        "name": token.text or token.role.value,
        "cat": token.role.value,
        "pid": _PID,
        "tid": token.thread,
        "ts": start,
        "dur": max(0.0, end - start),
        "args": {"depth": token.depth, "position": token.position, "slot": token.slot},
    }


def _step_start_us(trace: Trace, step: int) -> float:
    """Return when a step began: where the one before it ended (the prefill for step 0)."""
    if step <= 0 or not trace.step_s:
        return trace.prefill_s * 1e6
    return trace.step_s[min(step, len(trace.step_s)) - 1] * 1e6
