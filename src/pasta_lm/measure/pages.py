"""Pages of reports and of answers, and the paper's own figures as labelled reference points."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from pasta_lab.tasks.registry import training_families
from pasta_lm.errors import InputError
from pasta_lm.measure.instructions import SCORED, InstructionRun, answers_of
from pasta_lm.measure.prompt_sets import SETS, read_sets
from pasta_lm.strategies import pasta, sequential

Figures = Mapping[str, Any]
MAX_PROMPTS = 60
"""Of each set, on the page of answers."""
TAG = re.compile(r"&lt;(?:promise .*?/|/?async|sync/)&gt;")


def frontier_page(found: Figures) -> str:
    """Return the report of a comparison as Markdown; with ``published`` if it is to be shown."""
    template = _templates().get_template("frontier.md.j2")
    return template.render(found={"published": None, **found}, families=list(training_families()))


def alpaca_page(report: Figures) -> str:
    """Return the report of an ``alpaca`` run as Markdown."""
    return _templates().get_template("alpaca.md.j2").render(report=report)


def instructions_page(report: Figures) -> str:
    """Return the report of a run of ``instructions`` as Markdown."""
    return _templates().get_template("instructions.md.j2").render(report=report)


def model_card(facts: Figures, report: Figures) -> str:
    """Return the card of a model that ``pasta teach`` taught: what was measured, and what was not.

    Args:
        facts: The run's ``model``, ``version``, journal ``rows``, ``config``, ``cuts``,
            ``trains_all``, ``mixed_in``, ``amounts`` of stage one, and ``hours``.
        report: Of its run of ``instructions``.
    """
    sets, rows = report["sets"].values(), facts["rows"]
    measured = {
        "quality by a judge: no answer was compared by a judge or by a person": False,
        "quality under another model: no other model read the answers": report["readers"],
        "instructions that can be checked (IFEval)": any(one["ifeval"] for one in sets),
        "speed: no prompt was timed": any(one["num_timed"] for one in sets),
        "the cost of not seeing": report["references"],
        "facts, safety and bias: the base's, and nothing was done about them": False,
    }
    return (
        _templates()
        .get_template("model_card.md.j2")
        .render(
            facts=facts,
            report=report,
            name=Path(facts["model"]).name if Path(facts["model"]).exists() else facts["model"],
            plan=rows["plan"],
            answered=rows["answers"],
            rounds=rows["preference"]["rounds"],
            train=facts["config"].train,
            missing=[text for text, found in measured.items() if not found],
        )
    )


def answers_page(found: Figures) -> str:
    """Return answers side by side as one HTML file that needs nothing else."""
    return _templates().get_template("answers.html.j2").render(found=found)


def side_by_side(run: InstructionRun, sets: Collection[str] = SETS) -> Figures:
    """Return what the page shows: the first prompts of some sets, with both answers.

    A prompt whose file is not there is shown by its id.
    """
    answers = {name: answers_of(run.rows(SCORED), name) for name in (sequential.NAME, pasta.NAME)}
    texts = _texts(run)
    shown: dict[str, list[dict[str, Any]]] = {name: [] for name in sets}
    for row in run.rows("prompts"):
        of_set = shown.get(row["set"])
        both = [found.get(row["id"]) for found in answers.values()]
        if of_set is None or len(of_set) >= MAX_PROMPTS or None in both:
            continue
        baseline, taught = (one for one in both if one)
        of_set.append(
            {
                "id": row["id"],
                "parts": row["parts"],
                "prompt": texts.get(row["id"]),
                "sequential": baseline,
                "pasta": taught,
                "program": TAG.sub(r"<b>\g<0></b>", escape(taught.program)),
                "speedup": taught.theoretical_speedup(baseline),
            }
        )
    model, base = (system.model for system in reversed(run.settings.systems))
    return {"model": model, "baseline": base, "sets": {k: v for k, v in shown.items() if v}}


def _texts(run: InstructionRun) -> dict[str, str]:
    if run.prompts:
        return {one.id: one.text for one in run.prompts}
    try:
        return {one.id: one.text for one in read_sets(run.settings.sets)}
    except InputError:
        return {}


def _templates() -> Environment:
    found = Environment(
        loader=PackageLoader("pasta_lm.measure", "."),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {
        "interval": _interval,
        "number": _number,
        "value": _value,
        "bounds": _bounds,
        "cell": _cell,
        "notes": _notes,
        "counts": _counts,
        "figure": _figure,
        "yes": _yes,
    }
    return found


def _interval(figure: Figures | None, digits: int = 3) -> str:
    if figure is None:
        return "-"
    mean, low, high = (f"{figure[key]:.{digits}f}" for key in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]"


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _figure(figure: Any) -> str:
    is_interval = figure is None or isinstance(figure, Mapping)
    return _interval(figure) if is_interval else _number(figure, 4)


def _yes(flag: bool | None) -> str:
    return {True: "yes", False: "no", None: "-"}[flag]


def _counts(found: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in found.items())


def _value(figure: Figures | float) -> str:
    return f"{figure['mean'] if isinstance(figure, Mapping) else figure:.2f}"


def _bounds(figure: object) -> str:
    is_interval = isinstance(figure, Mapping)
    return f"{figure['low']:.2f} to {figure['high']:.2f}" if is_interval else "-"  # type: ignore[index]


def _cell(text: str) -> str:
    """Return a name so that it is neither HTML nor the end of a cell."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")


def _notes(figures: Figures) -> list[str]:
    """Return what is said below a system's numbers."""
    said = [figures[key] for key in ("pipeline_check", "refused") if key in figures]
    for problem, found in figures.get("problems", {}).items():
        names = ", ".join(found["instructions"])
        said.append(f"No verdict, {problem}: {found['count']} comparisons, of {names}")
    if figures.get("order_agreement") is not None:
        said.append(
            f"Both orders agree on {figures['order_agreement']:.1%}; the first answer gets "
            f"{figures['first_place_share']:.1%}"
        )
    return said


LABEL = (
    "published, Gemma 7B, AlpacaEval, not comparable with ours unless judge, baseline and prompts "
    "are the same"
)
NUM_PROMPTS = 805


class Published(NamedTuple):
    """One row of the paper's results."""

    name: str
    method: str
    win_rate: float
    realised_speedup: float
    theoretical_speedup: float
    efficiency: float | None = None
    """Realised / theoretical speedup, if the paper has it."""
    source: str = ""


_FILE = Path(__file__).with_name("published.toml")
PUBLISHED = tuple(Published(**row) for row in tomllib.loads(_FILE.read_text("utf-8"))["points"])


def published() -> dict[str, Any]:
    """Return the paper's figures as a report has them, each with its source."""
    points = [one._asdict() for one in PUBLISHED]
    return {"label": LABEL, "num_prompts": NUM_PROMPTS, "points": points}
