"""The page of a comparison, and the paper's own figures as labelled reference points."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from pasta_lab.tasks.registry import training_families

Figures = Mapping[str, Any]


def frontier_page(found: Figures) -> str:
    """Return the report of a comparison as Markdown; with ``published`` if it is to be shown."""
    template = _templates().get_template("frontier.md.j2")
    return template.render(found={"published": None, **found}, families=list(training_families()))


def _templates() -> Environment:
    found = Environment(
        loader=PackageLoader("pasta_lab.evaluate", "."),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {"interval": _interval, "number": _number, "cell": _cell}
    return found


def _interval(figure: Figures | None, digits: int = 3) -> str:
    if figure is None:
        return "-"
    mean, low, high = (f"{figure[key]:.{digits}f}" for key in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]"


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _cell(text: str) -> str:
    """Return a name so that it is neither HTML nor the end of a cell."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")


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
