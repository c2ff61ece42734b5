"""One page to look into a comparison: plots, tables, answers with their threads; no script, no net.

The page is one file of HTML. What a model wrote is escaped wherever it is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from pasta_lm.errors import InputError
from pasta_lm.evaluate import lanes
from pasta_lm.evaluate import plot as plots
from pasta_lm.evaluate.answered import Answered
from pasta_lm.evaluate.frontier import Measured, Speed
from pasta_lm.interpreter.trace import Trace
from pasta_lm.tasks.registry import make, training_families
from pasta_lm.tasks.task import Task

Figures = Mapping[str, Any]


def page(
    found: Figures, measured: Sequence[Measured], *, num_shown: int, wordings: str | None = None
) -> str:
    """Return the page as HTML.

    Args:
        found: What ``frontier.report`` returns.
        measured: The points that it is of.
        num_shown: Prompts of each family whose answers are shown, those with traces first.
        wordings: The split of the wordings, where it is another than that of the prompts.
    """
    drawn = [plots.plot(found, speed.value) for speed in Speed]
    return (
        _templates()
        .get_template("frontier.html.j2")
        .render(
            found=found,
            plots=[figure for figure in drawn if figure is not None],
            families=list(training_families()),
            shown=list(_shown(measured, num_shown, wordings)),
            layout=plots,
            lanes=lanes,
        )
    )


def svg(found: Figures) -> str:
    """Return one plot as a file of SVG: realised speed where a point was timed, else theoretical.

    Raises:
        InputError: there is no point to draw.
    """
    for speed in (Speed.REALISED, Speed.THEORETICAL):
        figure = plots.plot(found, speed.value)
        if figure is not None:
            return _templates().get_template("plot.svg.j2").render(plot=figure, layout=plots)
    raise InputError("nothing to draw: no point was run")


def interval(figure: Figures | None, digits: int = 3) -> str:
    """Return an estimate with its interval as a table shows it."""
    if figure is None:
        return "-"
    mean, low, high = (f"{figure[key]:.{digits}f}" for key in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]"


def _templates() -> Environment:
    found = Environment(
        loader=PackageLoader("pasta_lm.evaluate", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["interval"] = interval
    return found


def _shown(
    measured: Sequence[Measured], num_shown: int, wordings: str | None
) -> Iterator[dict[str, Any]]:
    """Yield by family prompts with what each point answered."""
    for family in training_families() if measured else ():
        names = [n for n, one in measured[0].answers.items() if one.family == family]
        with_traces = [n for n in names if any(n in one.timed for one in measured)]
        chosen = list(dict.fromkeys([*with_traces, *names]))[:num_shown]
        tasks = [_task(name, family, wordings) for name in chosen]
        yield {
            "family": family,
            "prompts": [{"task": t, "answers": list(_answers(measured, t))} for t in tasks],
        }


def _task(name: str, family: str, wordings: str | None) -> Task:
    """Draw a task again: its name says its split and its seed."""
    split, seed = name.removeprefix(f"{family}-").rsplit("-", 1)
    return make(family, split, int(seed), wordings=wordings)


def _answers(measured: Sequence[Measured], task: Task) -> Iterator[dict[str, Any]]:
    for one in measured:
        yield _answer(one.point.name, one.timed.get(task.id) or one.answers[task.id])


def _answer(name: str, answered: Answered) -> dict[str, Any]:
    trace = answered.trace
    drawn = None if trace is None else lanes.picture(Trace.from_packed(trace))
    return {"point": name, "answered": answered, "picture": drawn}
