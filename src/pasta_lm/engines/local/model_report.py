"""Report the facts of a model: what it is, what it can do, and what its passes cost."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pasta_lm.engines.local.forking import step_costs
from pasta_lm.engines.local.loading import LoadedModel, load
from pasta_lm.errors import UnsupportedModelError


@dataclass(frozen=True, slots=True)
class ModelReport:
    """Facts about a loaded model; it loads only if it is exact."""

    name: str
    architecture: str
    num_parameters: int
    device: str
    dtype: str
    has_tag_pieces: bool
    can_rotate: bool
    max_position: int | None
    step_ms: dict[str, float]
    """Milliseconds of a pass by its rows: what decides with --fork when-it-pays."""


def describe(
    source: str | Path, *, dtype: str | None = None, device: str | None = None
) -> ModelReport:
    """Load a model as ``load`` does, with the same errors, and report its facts.

    What its passes cost is measured once for each model and machine, and read afterwards.
    """
    loaded = load(source, dtype=dtype, device=device)
    return ModelReport(
        name=loaded.name,
        architecture=type(loaded.model).__name__,
        num_parameters=loaded.model.num_parameters(),
        device=str(loaded.device),
        dtype=loaded.dtype_name,
        has_tag_pieces=loaded.vocabulary.has_pieces,
        can_rotate=_can_rotate(loaded),
        max_position=loaded.max_position,
        step_ms=step_ms(loaded),
    )


def step_ms(loaded: LoadedModel) -> dict[str, float]:
    """Return the milliseconds of a model's passes by their rows, for a report."""
    return {str(rows): round(cost, 2) for rows, cost in step_costs(loaded).step_ms}


def _can_rotate(loaded: LoadedModel) -> bool:
    try:
        return bool(loaded.rotations)
    except UnsupportedModelError:
        return False
