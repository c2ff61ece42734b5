"""``pasta-lab annotate``: a trained model chooses where the tags of existing answers stand."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from pasta_lab.annotate.forced import ForcedAnnotator, Weights
from pasta_lm.cli.annotate import annotate_all
from pasta_lm.cli.terminal import silence_libraries
from pasta_lm.engines.local.loading import load
from pasta_lm.learn.annotate.filters import FilterConfig
from pasta_lm.learn.annotate.recipe import (
    MARKDOWN_RULE,
    AnnotateConfig,
    OutputConfig,
    SourceConfig,
)
from pasta_lm.recipe import read_recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedRecipe:
    """A recipe of forced annotation."""

    source: SourceConfig
    output: OutputConfig
    model: str
    """A folder or hub id; it was taught PASTA-LANG."""
    dtype: str | None = None
    weights: Weights = field(default_factory=Weights)
    filters: FilterConfig = field(default_factory=FilterConfig)


def annotate(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="The recipe.")],
) -> None:
    """Annotate answers by the likelihood of the annotations that their layout allows."""
    recipe = read_recipe(config, ForcedRecipe)
    silence_libraries()
    annotator = ForcedAnnotator(
        load(recipe.model, dtype=recipe.dtype), recipe.weights, recipe.filters
    )
    rows = AnnotateConfig(
        source=recipe.source,
        output=recipe.output,
        annotator=MARKDOWN_RULE,
        filters=recipe.filters,
    )
    method = {"model": recipe.model, "dtype": recipe.dtype, "weights": asdict(recipe.weights)}
    annotate_all(rows, rule=annotator, method={"forced annotation": method})
