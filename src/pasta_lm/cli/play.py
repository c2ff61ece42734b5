"""``pasta play``: animate the decoding of a written answer, without a model or the network."""

from __future__ import annotations

import sys
import time
import tomllib
from pathlib import Path
from typing import Annotated

from rich.text import Text

from pasta_lm.cli.flags import option, require_one_of
from pasta_lm.cli.terminal import can_animate, console, say
from pasta_lm.cli.thread_view import live_threads, picture, summary
from pasta_lm.engines.scripted import ScriptedEngine
from pasta_lm.language import parse

DURATION_S = 6.0


def read_scenes() -> dict[str, dict[str, str]]:
    """Read the scenes that come with the package: a ``prompt``, and its ``answer`` annotated."""
    return tomllib.loads(Path(__file__).with_name("scenes.toml").read_text(encoding="utf-8"))


def play(
    example: Annotated[str, option("--example NAME", "dinner or sunday.")] = "dinner",
    speed: Annotated[float, option("--speed X", "Speed; 2 is twice as fast.", min=0.01)] = 1.0,
) -> None:
    """Watch several threads decode a written answer.

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
