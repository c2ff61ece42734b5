"""The group of verbs that measure quality and speed, and what they share."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pasta_lm.cli.flags import ENVIRONMENT, option

if TYPE_CHECKING:
    from pasta_lm.measure.answering import System
    from pasta_lm.strategies.model import Pasta, Servers

T = TypeVar("T")

Set = Annotated[
    list[str] | None,
    option("--set", metavar="KEY=VALUE", help="Change a key of the recipe; may be repeated."),
]


def split_names(listed: str | None) -> list[str] | None:
    """Return the names in a list that is separated by commas."""
    return None if listed is None else [name.strip() for name in listed.split(",")]


def read_settings(
    kind: type[T], recipe: Path | None, flags: Mapping[str, Any], changes: Sequence[str] | None
) -> T:
    """Return a recipe's settings: ``--set`` over flags, environment, file and defaults.

    Raises:
        UsageError: a key is unknown or has a wrong value.
    """
    from pasta_lm.recipe import read_recipe

    machine = {key: os.environ.get(ENVIRONMENT[f"--{key}"]) or None for key in ("dtype", "device")}
    given = {key: value for key, value in {**machine, **flags}.items() if value is not None}
    told = [f"{key}={json.dumps(value)}" for key, value in given.items()]
    return read_recipe(recipe, kind, [*told, *(changes or [])])


def load_models(
    systems: Sequence[System],
    dtype: str | None,
    device: str | None,
    pool_tokens: int,
    servers: Servers | None = None,
) -> tuple[dict[str, Pasta], dict[str, dict[str, str]]]:
    """Return the models of some systems by name, and what their answers say of the machine."""
    from pasta_lab.evaluate.records import provenance
    from pasta_lm import __version__
    from pasta_lm.strategies.model import Pasta

    local = partial(Pasta.from_pretrained, dtype=dtype, device=device, pool_tokens=pool_tokens)
    load = local if servers is None else servers.holding
    models = {name: load(name) for name in dict.fromkeys(system.model for system in systems)}
    return models, {name: provenance(one, __version__) for name, one in models.items()}
