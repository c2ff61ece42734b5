"""The models that come with the package, by name."""

from __future__ import annotations

import pytest

from pasta_lm import Pasta
from pasta_lm.errors import ModelNotFoundError
from pasta_lm.strategies.model import BUILTINS, baseline_of


@pytest.mark.parametrize("name", BUILTINS)
def test_a_version_without_the_model_says_so_and_what_to_do(name: str) -> None:
    with pytest.raises(ModelNotFoundError, match=f"without the model '{name}'") as caught:
        Pasta.from_pretrained(name)
    assert "--model" in str(caught.value.hint)


def test_the_baseline_of_the_builtin_model_is_its_twin_and_of_another_the_model_itself() -> None:
    assert baseline_of("builtin") == "builtin-sequential"
    assert baseline_of("some/model") == "some/model"
