"""What cannot be run exactly, or never be served, is refused with a sentence that says why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel

from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.passes import self_test
from pasta_lm.engines.passes.self_test import check_exact, flattened_difference, tiny_model
from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.errors import RequestError, UnsupportedModelError, VocabularyError
from pasta_lm.interpreter.positions import Join, PositionStrategy
from pasta_lm.models.encoded import EncodedDocument
from tests.architectures import ARCHITECTURES, build, load, loaded

SIZES = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 4, "pad_token_id": 0}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 200}
SIZES |= {"max_position_embeddings": 512, "initializer_range": 0.2}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
LINEAR = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16}
LINEAR |= {"linear_value_head_dim": 16, "num_experts": 2, "num_experts_per_tok": 1}
LINEAR |= {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
INEXACT = {
    "Llama4Text": {"intermediate_size_mlp": 80, "attention_chunk_size": 8, "moe_layers": []},
    "Lfm2": {"layer_types": ["conv", "full_attention"] * 2, "block_ff_dim": 80},
    "MiniMax": {"head_dim": 16, "block_size": 8, **EXPERTS},
    "Qwen3Next": {"head_dim": 16, **LINEAR},
    "StableLm": {},
    "DiffLlama": {},
    "HrmText": {},
    "Dory": {"n_input_layers": 1, "n_recurrent_layers": 2, "n_output_layers": 1},
    "Falcon": {},
    "GPTNeo": {"num_layers": 4, "attention_types": [[["global", "local"], 2]], "window_size": 8},
    "GPTNeoXJapanese": {},
}
REASONS = "(is not exact when flattened|does not hand keywords on|cannot run on a|attends twice in"
REASONS += " layer|computes its attention itself)"


def random_model(name: str, **settings: object) -> PreTrainedModel:
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **settings})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    return model.eval()


@pytest.mark.parametrize("name", INEXACT)
def test_an_architecture_that_is_not_exact_when_flattened_is_refused_by_name(name: str) -> None:
    model = random_model(name, **INEXACT[name])
    with pytest.raises(UnsupportedModelError, match=f"{name.removesuffix('Text')}.* .*{REASONS}"):
        check_exact(model)


@pytest.mark.parametrize("name", ["Llama4Text", "Lfm2", "MiniMax", "Qwen3Next"])
def test_a_tiny_model_shows_that_a_large_one_is_not_exact(name: str) -> None:
    settings = {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8}
    config = getattr(transformers, f"{name}Config")(**(settings if name == "Lfm2" else {}))
    difference = flattened_difference(tiny_model(config))
    assert difference > 1, "with the weights of its own initialisation it hides"


def test_untrained_weights_do_not_hide_that_a_model_is_not_exact() -> None:
    model = random_model("Lfm2", **INEXACT["Lfm2"], initializer_range=0.002)
    assert flattened_difference(model) < self_test.TOLERANCE
    with pytest.raises(UnsupportedModelError, match="Lfm2ForCausalLM is not exact"):
        check_exact(model)


def test_a_small_model_that_has_no_tiny_model_is_tested_by_its_own_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refuse = Mock(side_effect=UnsupportedModelError("no tiny model"))
    monkeypatch.setattr(self_test, "tiny_model", refuse)
    check_exact(build("llama"))
    with pytest.raises(UnsupportedModelError, match="not exact"):
        check_exact(random_model("Lfm2", **INEXACT["Lfm2"]))
    with pytest.raises(UnsupportedModelError, match="no tiny model"):
        check_exact(build("llama").bfloat16())


DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("Doge", {"head_dim": 12}, "gives its attention a mask of its own"),
        ("Llama", {"rope_parameters": DYNAMIC}, "'dynamic' RoPE.*one response would change"),
    ],
)
def test_what_makes_attention_inexact_is_named(
    name: str, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        check_exact(random_model(name, **settings))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_large_model_is_tested_by_its_tiny_model(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_test, "MAX_TESTED_PARAMETERS", 0)
    watched = Mock(wraps=tiny_model)
    monkeypatch.setattr(self_test, "tiny_model", watched)
    check_exact(build(name))
    watched.assert_called_once()


def test_a_configuration_that_cannot_be_made_small_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="could not be made small"):
        tiny_model(transformers.XLNetConfig())


def test_a_model_without_rows_for_the_tags_of_its_tokenizer_is_refused() -> None:
    num_rows = loaded("llama").vocabulary.num_tokens - 10
    model = build("llama")
    model.resize_token_embeddings(num_rows, mean_resizing=False)
    with pytest.raises(VocabularyError, match=f"no rows: it has {num_rows}"):
        load("llama", model)


def ask(prompt: int, **params: int) -> Request:
    return Request(prompt=[5] * prompt, params=SamplingParams(**params))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("request_of", "said"),
    [
        (lambda: ask(0), "the prompt is empty"),
        (lambda: ask(2049, max_tokens=1), "context length is 2048 tokens; the prompt has 2049"),
        (lambda: ask(20, max_tokens=100), r"120 cache entries .* the pool holds 112"),
        (lambda: ask(20, max_tokens=31, n=3), r"113 cache entries .* the pool holds 112"),
        (lambda: replace(ask(2), prompt=[5, 10**6]), "no token 1000000: the model has [0-9]+ tok"),
        (lambda: replace(ask(2), prompt=[5, -1]), "there is no token -1"),
        (lambda: replace(ask(2), forced=EncodedDocument((5,), ((10**6,),))), "no token 1000000"),
        (lambda: replace(ask(2), positions=PositionStrategy.ORACLE), "only a given answer has"),
        (lambda: replace(ask(2), join=Join.RECOMPUTE), "'predict' does"),
    ],
)
def test_a_request_that_can_never_be_served_is_refused_at_once(
    request_of: Callable[[], Request], said: str
) -> None:
    engine = TorchEngine(loaded("llama"), pool_tokens=112, captures=False)
    with pytest.raises(RequestError, match=said):
        engine.submit(request_of())
    assert not engine.has_work
    assert not engine.scheduler.waiting
    assert engine.pool.num_free_pages == engine.pool.num_pages


def test_longrope_ends_where_its_other_factors_would_begin() -> None:
    rope = {"rope_type": "longrope", "rope_theta": 10_000.0, "short_factor": [1.0] * 6}
    rope |= {"long_factor": [4.0] * 6, "original_max_position_embeddings": 64}
    changes = {"rope_parameters": rope, "original_max_position_embeddings": 64, "head_dim": 12}
    model = load("phi3", build("phi3", **changes))
    assert model.max_position == 63
    engine = TorchEngine(model, pool_tokens=256, captures=False)
    with pytest.raises(RequestError, match="context length is 64 tokens; the prompt has 65"):
        engine.submit(ask(65, max_tokens=1))
    params = SamplingParams(max_tokens=100, ignore_eos=True, temperature=1.0)
    ((answer,),) = engine.generate([Request(prompt=[5] * 40, params=params)])
    assert answer.finish_reason == "length"
    assert max(token.position or 0 for token in answer.trace.tokens) <= 63
