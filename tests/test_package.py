"""The public names, and what the test run itself promises."""

from __future__ import annotations

import json
import tomllib
from importlib import import_module, metadata
from pathlib import Path
from unittest.mock import Mock

import pytest
from packaging.requirements import Requirement

import pasta_lm
from pasta_lm.errors import install_command


@pytest.mark.parametrize("name", sorted(pasta_lm.LAZY))
def test_a_public_name_is_the_one_its_module_defines(name: str) -> None:
    module = import_module(pasta_lm.LAZY[name])
    assert getattr(pasta_lm, name) is getattr(module, name)


def test_all_lists_exactly_the_public_names() -> None:
    assert sorted(pasta_lm.__all__) == sorted([*pasta_lm.LAZY, "__version__"])
    assert dir(pasta_lm) == sorted(pasta_lm.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'spaghetti'"):
        _ = pasta_lm.spaghetti  # type: ignore[attr-defined]


PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
CLONE, WHEEL, PAGE = "file:///a/b", "file:///x/pasta_lm-1-py3-none-any.whl", "https://a.b/c.git"
COMMIT = {"vcs": "git", "commit_id": "1"}


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'pasta-lm[serve]'"),  # from an index: there is a release
        ({"url": CLONE, "dir_info": {}}, f"pip install 'pasta-lm[serve] @ {CLONE}'"),
        ({"url": WHEEL, "archive_info": {}}, f"pip install 'pasta-lm[serve] @ {WHEEL}'"),
        ({"url": PAGE, "vcs_info": COMMIT}, f"pip install 'pasta-lm[serve] @ git+{PAGE}'"),
    ],
)
def test_an_extra_comes_from_where_the_package_came(
    monkeypatch: pytest.MonkeyPatch, origin: object, command: str
) -> None:
    text = origin and json.dumps(origin)
    installed = Mock(**{"read_text.return_value": text})
    monkeypatch.setattr(metadata, "distribution", lambda name: installed)
    assert install_command("serve") == command
    monkeypatch.setattr(metadata, "distribution", Mock(side_effect=metadata.PackageNotFoundError))
    assert "clone" in install_command("serve")


def test_a_triton_of_the_tests_stands_beside_every_torch_of_the_package() -> None:
    lists = tomllib.loads(PYPROJECT.read_text("utf-8"))["project"]["optional-dependencies"]
    needs = {need.name: need.specifier for need in map(Requirement, lists["run"] + lists["dev"])}
    # What torch's wheels of PyPI pin: https://pypi.org/pypi/torch/2.6.0/json and 2.13.0.
    for torch, triton in {"2.6.0": "3.2.0", "2.13.0": "3.7.1"}.items():
        assert torch in needs["torch"]
        assert triton in needs["triton"]
