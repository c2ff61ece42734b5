"""``pasta play``: animate the decoding of a written answer, without a model or the network."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pasta_lm.cli.flags import option, require_one_of

if TYPE_CHECKING:
    from pasta_lm.engines.scripted import ScriptedEngine

DURATION_S = 6.0


@dataclass(frozen=True, slots=True)
class Scene:
    """A question and its answer in annotator form."""

    prompt: str
    answer: str


def read_scenes() -> dict[str, Scene]:
    """Read the scenes that come with the package."""
    file = Path(__file__).with_name("scenes.toml")
    scenes = tomllib.loads(file.read_text(encoding="utf-8"))
    return {name: Scene(**scene) for name, scene in scenes.items()}


def play(
    example: Annotated[
        str, option("--example", metavar="NAME", help="The answer to show: dinner or sunday.")
    ] = "dinner",
    speed: Annotated[
        float,
        option("--speed", metavar="X", min=0.01, help="Speed; 2 is twice as fast."),
    ] = 1.0,
) -> None:
    """Watch several threads decode a written answer.

    This needs no model, no network and no torch: the threads, their positions and the trace are
    real, but the tokens are read from a script.
    """
    import sys

    from rich.text import Text

    from pasta_lm.cli.terminal import can_animate, console, glyphs
    from pasta_lm.cli.thread_view import picture, summary
    from pasta_lm.engines.scripted import ScriptedEngine
    from pasta_lm.language import parse

    scenes = read_scenes()
    require_one_of("--example", example, scenes)
    scene = scenes[example]
    engine = ScriptedEngine(parse(scene.answer, "annotator"))
    out = console(sys.stdout)
    answer = engine.answer(scene.prompt)
    out.print(f"> {scene.prompt}\n", style="bold")
    if can_animate():
        _animate(engine, scene.prompt, DURATION_S / speed / (answer.trace.forward_passes + 1))
    out.print(picture(answer.trace, out.width, glyphs(out)))
    out.print()
    for line in Text(answer.text).wrap(out, out.width):
        out.print(line.plain.rstrip())
    typer.echo(f"\npasta: {summary(answer.trace)}", err=True)


def _animate(engine: ScriptedEngine, prompt: str, pause_s: float) -> None:
    import sys
    import time

    from pasta_lm.cli.terminal import console
    from pasta_lm.cli.thread_view import live_threads

    with live_threads(console(sys.stderr)) as show:
        for events in engine.steps(engine.request(prompt)):
            show(events)
            time.sleep(pause_s)
