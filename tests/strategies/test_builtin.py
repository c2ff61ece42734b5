"""The models that come with the package: small, sound, and able to answer their examples."""

from __future__ import annotations

import pytest

from pasta_lm import Pasta, SamplingParams
from pasta_lm.errors import ModelNotFoundError
from pasta_lm.strategies import model as public
from pasta_lm.strategies.model import BUILTINS, baseline_of, builtin_folder
from pasta_lm.tasks.referee import referee_grade
from pasta_lm.tasks.registry import example, training_families
from tests.tasks.reading import allows_gain

MAX_BYTES = 12_000_000


@pytest.fixture(scope="module")
def builtin() -> Pasta:
    return Pasta.from_pretrained("builtin")


@pytest.mark.parametrize("name", BUILTINS)
def test_a_model_of_the_package_is_small_and_has_a_card(name: str) -> None:
    folder = builtin_folder(name)
    assert (folder / "model.safetensors").stat().st_size <= MAX_BYTES
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "runs/laptop.sh" in card
    assert "## Measured" in card


def test_the_builtin_model_is_taught_and_digits_stand_alone(builtin: Pasta) -> None:
    assert builtin.has_tag_pieces
    vocabulary = builtin.engine.loaded.vocabulary
    assert [vocabulary.token_text(one) for one in vocabulary.encode_text("407")] == ["4", "0", "7"]


@pytest.mark.parametrize("family", training_families())
def test_the_example_of_every_family_is_answered_correctly(builtin: Pasta, family: str) -> None:
    task = example(family)
    answer = builtin.generate(task.prompt)
    assert referee_grade(task, answer.text) == 1.0, answer.text
    assert (len(answer.document.blocks) > 1) == allows_gain(task)


@pytest.mark.parametrize(
    "prompt", ["Hello!", "Why is the sky blue?", "<sync/><async>", "1 2 3 " * 200, "\U0001f35d"]
)
def test_an_off_task_prompt_gets_an_answer(builtin: Pasta, prompt: str) -> None:
    answer = builtin.generate(prompt, SamplingParams(max_tokens=200))
    assert answer.finish_reason in {"stop", "length"}


def test_the_builtin_model_has_a_sequential_baseline_and_other_models_are_their_own() -> None:
    assert baseline_of("builtin") == "builtin-sequential"
    assert baseline_of("some/model") == "some/model"


def test_a_missing_builtin_model_is_an_error_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public, "__file__", "/nowhere/pasta_lm/strategies/model.py")
    with pytest.raises(ModelNotFoundError, match="missing in this installation"):
        Pasta.from_pretrained("builtin")
