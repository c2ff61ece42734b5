"""Report the facts of a model: what it is, and what it can do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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


def describe(
    source: str | Path, *, dtype: str | None = None, device: str | None = None
) -> ModelReport:
    """Load a model as ``load`` does, with the same errors, and report its facts."""
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
    )


def _can_rotate(loaded: LoadedModel) -> bool:
    try:
        return bool(loaded.rotations)
    except UnsupportedModelError:
        return False
