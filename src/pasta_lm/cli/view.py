"""``pasta view``: show a trace as a picture, a page, or for Perfetto; ``pasta play``: make one."""

from __future__ import annotations

import sys
import time
import tomllib
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from pasta_lm.cli.flags import option, require_one_of
from pasta_lm.cli.terminal import can_animate, console, print_facts, read_text, say, write_text
from pasta_lm.cli.thread_view import live_threads, picture, summary
from pasta_lm.engines.scripted import ScriptedEngine
from pasta_lm.errors import InputError, UsageError
from pasta_lm.interpreter.trace import Trace
from pasta_lm.language import parse
from pasta_lm.view.page import page_of, to_perfetto, to_svg
from pasta_lm.view.run_data import run_data


def view(
    file: Annotated[str, typer.Argument(metavar="TRACE.json", help="From `pasta run --trace`.")],
    perfetto: Annotated[
        Path | None, option("--perfetto OUT.json", "Write the trace for ui.perfetto.dev.")
    ] = None,
    html: Annotated[
        Path | None, option("--html OUT.html", "Write a page: timeline, answer and written form.")
    ] = None,
    svg: Annotated[
        Path | None, option("--svg OUT.svg", "Write the bars as a picture that moves.")
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
    if svg is not None:
        write_text(svg, to_svg(trace))
        say(f"wrote {svg}; open it in a browser")
    if html is not None:
        traces = [*map(_read, beside or ()), trace]
        write_text(html, page_of([run_data(run) for run in traces]))
        say(f"wrote {html}; open it in a browser")
    if not (perfetto is html is svg is None):
        return
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


# --- play

DURATION_S = 6.0


def read_scenes() -> dict[str, dict[str, str]]:
    return tomllib.loads(Path(__file__).with_name("scenes.toml").read_text(encoding="utf-8"))


def play(
    example: Annotated[str, option("--example NAME", "dinner or sunday.")] = "dinner",
    speed: Annotated[float, option("--speed X", "Speed; 2 is twice as fast.", min=0.01)] = 1.0,
) -> None:
    """Watch several threads decode a written answer; needs no model.

    This needs no model, no network and no torch: the threads, their positions and the trace are
    real, but the tokens are read from a script.
    """
    scenes = read_scenes()
    require_one_of("--example", example, scenes)
    prompt = scenes[example]["prompt"]
    engine = ScriptedEngine(parse(scenes[example]["answer"], "annotator"))
    out = console(sys.stdout)
    answer = engine.answer(prompt)
    out.print(f"> {prompt}\n", style="bold")
    if can_animate():
        pause_s = DURATION_S / speed / (answer.trace.forward_passes + 1)
        with live_threads() as show:
            for events in engine.steps(engine.request(prompt)):
                show(events)
                time.sleep(pause_s)
    out.print(picture(answer.trace, out))
    out.print()
    for line in Text(answer.text).wrap(out, out.width):
        out.print(line.plain.rstrip())
    say(summary(answer.trace))
    if can_animate():
        say('the tokens came from a script; pasta run "Three ways to sleep better" asks a model')
