"""``pasta play``: animate the decoding of a written answer, without a model or the network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from pasta_lm.cli.flags import option, require_one_of

if TYPE_CHECKING:
    from pasta_lm.engines.scripted import ScriptedEngine

DURATION_S = 6.0


@dataclass(frozen=True, slots=True)
class Scene:
    """A question and its answer in annotator form; lengths are counted when it is played."""

    prompt: str
    answer: str


DINNER = Scene(
    "How do I cook pasta al pomodoro for four?",
    """Four things can happen at once, so begin them together.

Sauce: <async topic="tomato sauce">Warm a good pour of olive oil with two crushed cloves of garlic \
until the kitchen smells of it. Take the garlic out, tip in two tins of peeled tomatoes, crush \
them with a spoon, salt them a little, and let them simmer gently until the oil rises to the \
top.</async>

Water: <async topic="salted water">Fill your largest pot, put the lid on and bring it to a \
rolling boil. Salt it only then, a small handful, until it tastes like a calm sea. Keep one cup \
of it for later.</async>

Cheese: <async topic="cheese and basil">Grate a generous bowl of pecorino. Tear the basil by hand \
at the last moment, because a knife would bruise it.</async>

Table: <async topic="the table">Lay four deep plates in a warm oven, open the wine and call \
everybody now; they will be late anyway.</async>

<sync/>Now they meet. Lift the pasta out of the water two minutes early, straight into the \
simmering sauce. Loosen it with a little from the cup, toss until it shines, take it off the \
fire and fold in the cheese and the basil. Nobody waited for anybody, and dinner is ready.""",
)

SUNDAY = Scene(
    "Plan a rainy Sunday at home.",
    """A slow day in three parts, none of which depends on the others.

Morning: <async topic="slow morning">Sleep until the rain wakes you. Make a large pot of tea, bake \
something with cinnamon, and read the first chapter of the book that has been waiting since \
spring.</async>

Afternoon: <async topic="long afternoon">Put on boots and walk to the river, to see how high it \
stands. Come home wet, hang everything over the radiators, and play a record from beginning to \
end, both sides, doing nothing else.</async>

Evening: <async topic="warm evening">Cook soup for too many people and call the neighbours. Light \
candles rather than lamps, and let somebody else choose the film.</async>

<sync/>Tea, a river, soup: if one of the three fails, the other two are still a good Sunday.""",
)

SCENES = {"dinner": DINNER, "sunday": SUNDAY}


def play(
    example: Annotated[
        str, option("--example", metavar="NAME", help="dinner or sunday.")
    ] = "dinner",
    speed: Annotated[
        float, option("--speed", metavar="X", min=0.01, help="2 is twice as fast.")
    ] = 1.0,
) -> None:
    """Watch several threads decode a written answer.

    It needs no model, no network and no torch: threads, placement and trace are real, the tokens
    are read from a script.
    """
    import sys

    from rich.text import Text

    from pasta_lm.cli.terminal import can_animate, console, glyphs
    from pasta_lm.cli.thread_view import picture, summary
    from pasta_lm.engines.scripted import ScriptedEngine
    from pasta_lm.language import parse

    require_one_of("--example", example, SCENES)
    scene = SCENES[example]
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
