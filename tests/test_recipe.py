"""Recipes are validated key by key, and a run continues only with the settings it began with."""

from __future__ import annotations

import builtins
import math
import tomllib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from pasta_lm.errors import UsageError
from pasta_lm.recipe import check_same_settings, read_recipe, toml_of


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    name: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    mode: Literal["fast", "exact"] = "exact"
    systems: tuple[System, ...] = ()
    beta: float | str = "auto"
    extra: System | None = None
    own: System = field(default_factory=lambda: System(name="own"))


def read(tmp_path: Path, text: str) -> Config:
    path = tmp_path / "recipe.toml"
    path.write_text(text, encoding="utf-8")
    return read_recipe(path, Config)


def test_tables_lists_of_tables_and_infinity_are_read(tmp_path: Path) -> None:
    text = 'mode = "fast"\nbeta = inf\nsystems = [{name = "a"}, {name = "b", weight = 2}]\n'
    systems = (System(name="a"), System(name="b", weight=2.0))
    found = read(tmp_path, text + 'extra.name = "c"')
    assert found == Config(mode="fast", beta=math.inf, systems=systems, extra=System(name="c"))
    assert type(found.systems[1].weight) is float


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ('mode = "slow"', "mode is 'slow'", "one of fast, exact"),
        ("systems = 3", "systems must be a list, not 3", None),
        ("systems = [3]", "systems must be a table, not 3", None),
        ("systems = [{}]", "systems.name is missing", None),
        ('systems = [{nam = "a"}]', "unknown key systems.nam", "did you mean 'name'?"),
        ("beta = []", "beta must be float or str, not []", None),
        ("extra = {}", "extra.name is missing", None),
        ('own = {name = "x", weight = true}', "own.weight must be float, not True", None),
    ],
)
def test_a_mistake_is_named_by_its_key(
    tmp_path: Path, text: str, message: str, hint: str | None
) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text)
    assert (caught.value.message, caught.value.hint) == (message, hint)


def test_a_missing_pydantic_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = builtins.__import__

    def without_pydantic(name: str, *rest: Any, **more: Any) -> Any:
        if name == "pydantic":
            raise ImportError(name)
        return find(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without_pydantic)
    with pytest.raises(UsageError, match="need pydantic") as caught:
        read(tmp_path, "")
    assert caught.value.hint == "pip install 'pydantic>=2.9'"


def test_a_run_continues_with_the_settings_it_began_with() -> None:
    config = Config(systems=(System(name="a"),), beta=math.inf)
    begun = {"mode": "exact", "systems": [{"name": "a", "weight": 1.0}], "beta": "inf"}
    own = {"own.name": "own", "own.weight": "1.0", "extra": None}
    check_same_settings("build/x", begun | own | {"a key of an old version": 1}, asdict(config))


@pytest.mark.parametrize(
    ("begun", "message"),
    [
        ({"a": {"b": 1}, "c": 3}, "build/x was begun with a.b = 1, not 2"),
        ({"a": {"b": 2}, "c": 4}, "build/x was begun with c = 4, not 3"),
        ({"c": 4}, "build/x was begun with a.b = None, not 2; c = 4, not 3"),
    ],
)
def test_changed_settings_are_named(begun: dict[str, Any], message: str) -> None:
    now = {"a": {"b": 2}, "c": 3}
    with pytest.raises(UsageError) as caught:
        check_same_settings("build/x", begun, now)
    assert caught.value.message == message
    check_same_settings("build/x", begun, now, may_change={"a.b", "c"})


def test_a_recipe_that_was_written_reads_back_as_it_was(tmp_path: Path) -> None:
    data = {
        "name": 'a "quoted" \u00e9\\n',
        "count": 3,
        "none": None,
        "most": float("inf"),
        "names": ["one", "two"],
        "table": {"is_on": True, "rate": 1e-05, "inner": {"key": "value"}, "empty": {}},
    }
    text = toml_of(data, ["said by", "two lines"])
    assert text.startswith("# said by\n# two lines\n")
    del data["none"]
    assert tomllib.loads(text) == data
