"""Sources of a model, and their faults: folders, GGUF files, packages of weights, adapters."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock, patch

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, AutoTokenizer, ByT5Tokenizer, PreTrainedTokenizerFast

from pasta_lm.engines.local.loading import load
from pasta_lm.engines.request import SamplingParams
from pasta_lm.engines.servers.completions import read_served
from pasta_lm.errors import ModelError, ModelNotFoundError, PastaError, VocabularyError
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.learn.train.learner import dtype_as_saved, load_learner
from pasta_lm.machine import WEIGHTS_COMMAND
from pasta_lm.models import adapter, checkpoint
from pasta_lm.models.adapter import BaseReference, merge_adapter, read_adapter, reference_to
from pasta_lm.models.folder import save_model_folder
from pasta_lm.models.load import load_pretrained, load_without_weights, num_parameters
from pasta_lm.models.names import model_name
from pasta_lm.models.pieces import add_pieces
from pasta_lm.strategies.model import Pasta
from tests.adapters import a_base, a_base_folder, a_peft_adapter, an_adapter, config_of
from tests.architectures import build
from tests.gguf_file import a_tokenizer, write_gguf

FLOAT = torch.float32
PACKAGE = "a-package-of-weights"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the cache, empty, and forget what was noted."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    checkpoint.note.cache_clear()
    return tmp_path / "cache" / "pasta-lm" / "gguf"


@pytest.mark.parametrize(
    ("is_tied", "noise", "num_more"),
    [(True, None, 0), (False, 0.0, 0), (False, 0.1, 0), (False, 1.0, 1), (False, None, 1)],
)
def test_a_tied_output_matrix_counts_once_also_if_it_is_saved_twice_and_rounded(
    is_tied: bool, noise: float | None, num_more: int
) -> None:
    model = build("qwen2", tie_word_embeddings=is_tied)
    first, last = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    if noise is not None:
        last.data = first.data + noise * first.data.std() * torch.randn_like(first)
    layers = sum(weight.numel() for weight in model.model.parameters())  # with the input matrix
    assert num_parameters(model) == layers + num_more * last.numel()


@pytest.mark.parametrize("spelling", ["{}", "{}/", "{}/.", "{}/child/..", "."])
def test_the_name_of_a_model_is_that_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    (tmp_path / "mine" / "child").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "mine")
    for folder in (tmp_path / "mine", "../mine"):
        assert model_name(spelling.format(folder)) == "mine"
    assert model_name("owner/model") == "owner/model"


def change_json(file: Path, **settings: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))


def change_weights(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    file = folder / "model.safetensors"
    weights = load_file(file)
    save_file(change(weights), file, metadata={"format": "pt"})


def without_a_layer(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: one for key, one in weights.items() if "layers.1.mlp.up_proj" not in key}


def narrower(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k: w[:, :-8].contiguous() if "q_proj" in k else w for k, w in weights.items()}


def make_pointer(file: Path) -> None:
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")


def cut_off(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:100])


def quantise(folder: Path, method: str) -> None:
    settings = {"quant_method": method, "bits": 4, "load_in_4bit": True}
    change_json(folder / "config.json", quantization_config=settings)


def without_fast_tokenizer(folder: Path) -> None:
    for file in folder.glob("tokenizer*"):
        file.unlink()
    ByT5Tokenizer().save_pretrained(folder)


WEIGHTS, TOKENIZER, CONFIG = "model.safetensors", "tokenizer.json", "config.json"
LLAMA = "no whole LlamaForCausalLM: model.layers.1.mlp.up_proj.weight is miss"
SHAPE = r"model.layers.0.self_attn.q_proj.weight has the shape \(64, 40\), and Llama"


@pytest.mark.parametrize(
    ("spoil", "message", "hint"),
    [
        (lambda folder: change_weights(folder, without_a_layer), LLAMA, ""),
        (lambda folder: change_weights(folder, narrower), SHAPE, ""),
        (lambda folder: make_pointer(folder / WEIGHTS), f"{WEIGHTS} is a Git LFS po", "lfs pull"),
        (lambda folder: make_pointer(folder / TOKENIZER), f"{TOKENIZER} is a Git LFS", "lfs pull"),
        (lambda folder: cut_off(folder / CONFIG), "cannot be loaded: ", ""),
        (lambda folder: cut_off(folder / TOKENIZER), "cannot be loaded: ", ""),
        (lambda folder: cut_off(folder / WEIGHTS), "cannot be loaded: ", ""),
        (lambda folder: quantise(folder, "gptq"), "quantised by gptq", "GGUF"),
        (lambda folder: quantise(folder, "bitsandbytes"), "quantised by bitsandbytes", "GGUF"),
        (without_fast_tokenizer, "ByT5Tokenizer has no fast form", ""),
    ],
)
def test_a_folder_that_is_not_whole_is_refused_with_its_fault(
    tmp_path: Path, spoil: Callable[[Path], None], message: str, hint: str
) -> None:
    folder = a_base_folder(tmp_path / "mine")
    spoil(folder)
    with pytest.raises(ModelError, match=message) as caught:
        load_pretrained(folder)
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize("is_tied", [True, False])
def test_tied_weights_and_further_weights_are_no_fault(tmp_path: Path, is_tied: bool) -> None:
    folder = a_base_folder(tmp_path / "mine", tie_word_embeddings=is_tied)
    assert ("lm_head.weight" in load_file(folder / "model.safetensors")) is not is_tied
    change_weights(folder, lambda weights: weights | {"model.vision.weight": torch.ones(2)})
    model = load_pretrained(folder, dtype=torch.bfloat16).model
    assert model.dtype is torch.bfloat16


CODE = """
from pathlib import Path
Path({ran!r}).write_text("it ran")
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
class TheConfig(LlamaConfig): model_type = "not_known"
class TheModel(LlamaForCausalLM): config_class = TheConfig
class TheTokenizer(PreTrainedTokenizerFast): pass
"""


@pytest.mark.parametrize(
    "read",
    [load_pretrained, read_served, lambda folder: dtype_as_saved(str(folder))],
    ids=["weights", "served", "dtype"],
)
@pytest.mark.parametrize("model_type", ["not_known", "llama"])
def test_code_in_a_model_folder_is_never_run_nor_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    model_type: str, read: Callable[[Path], object],
) -> None:  # fmt: skip
    folder, ran = a_base_folder(tmp_path / "mine"), tmp_path / "ran"
    (folder / "code.py").write_text(CODE.format(ran=str(ran)))
    parts = {"AutoConfig": "code.TheConfig", "AutoModelForCausalLM": "code.TheModel"}
    change_json(folder / "config.json", model_type=model_type, auto_map=parts)
    names = {"AutoTokenizer": [None, "code.TheTokenizer"]}
    change_json(folder / "tokenizer_config.json", auto_map=names, tokenizer_class="TheTokenizer")
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 9))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    with suppress(PastaError):
        read(folder)
    assert not ran.exists()
    assert "y/N" not in capsys.readouterr().out


def test_a_folder_without_a_model_and_an_unknown_name_are_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"there is no config\.json"):
        load_pretrained(tmp_path)
    with pytest.raises(ModelNotFoundError, match="(?s)no/such-model could not.*a folder"):
        load_pretrained("no/such-model")
    with pytest.raises(ModelNotFoundError, match=r"no such file: nowhere\.gguf"):
        load_pretrained("nowhere.gguf")


def test_a_taught_model_of_the_hub_has_the_record_of_its_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    (tmp_path / "models--some--taught" / "refs").mkdir(parents=True)
    (tmp_path / "models--some--taught" / "refs" / "main").write_text("abc")
    model, tokenizer = a_base()
    config = config_of(add_pieces(model, tokenizer))
    folder = tmp_path / "models--some--taught" / "snapshots" / "abc"
    save_model_folder(model, tokenizer, folder, config)
    for load_from in (load_pretrained, load_without_weights):
        assert load_from("some/taught").config == config
    (folder / "pasta_config.json").unlink()
    assert load_pretrained("some/taught").config is None


def assert_weights(model: nn.Module, expected: Mapping[str, Tensor]) -> None:
    assert_close(dict(model.named_parameters()), expected, atol=0, rtol=0)


@pytest.mark.parametrize("kind", [Type.Q4_1, Type.Q8_0, Type.F16, Type.F32])
def test_a_gguf_file_has_the_dequantised_weights_and_that_is_noted_once(
    tmp_path: Path, kind: Type, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = write_gguf(tmp_path / "model.gguf", kind)
    load_pretrained(tmp_path / "model.gguf")
    found = load_pretrained(tmp_path / "model.gguf")
    out, err = capsys.readouterr()
    assert (out, err.count("dequantising model.gguf to float32, once")) == ("", 1)
    assert_weights(found.model, expected)
    tokenizer = found.tokenizer
    assert tokenizer.get_vocab() == a_tokenizer().get_vocab()
    for text in ("Drink a glass of water.", "<|end|>5\u20ac for  it\n"):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == a_tokenizer().encode(text, add_special_tokens=False)
    assert tokenizer.chat_template == a_tokenizer().chat_template


def test_a_gguf_file_is_parsed_once_and_then_read_from_the_cache(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gguf(tmp_path / "model.gguf")
    with patch("gguf.GGUFReader", Mock(wraps=gguf.GGUFReader)) as reader:
        first = load_pretrained(tmp_path / "model.gguf").model
    reader.assert_called_once()
    assert len([*cache.iterdir()]) == 1
    monkeypatch.delattr(checkpoint, "_dequantised")
    copy = tmp_path / "another name.gguf"
    copy.write_bytes((tmp_path / "model.gguf").read_bytes())
    again = load_pretrained(copy, dtype=torch.bfloat16).model
    assert_weights(again, {name: w.bfloat16() for name, w in first.named_parameters()})


DAMAGES: dict[str, Callable[[Path], object]] = {
    "zeros": lambda copy: (copy / "model.safetensors").write_bytes(b"\0" * 999),
    "a changed byte": lambda copy: change_weights(copy, lambda w: {k: v + 1 for k, v in w.items()}),
    "another template": lambda copy: (copy / "chat_template.jinja").write_text("{{ messages }}"),
    "a missing file": lambda copy: (copy / "tokenizer.json").unlink(),
    "no sums": lambda copy: (copy / checkpoint.SUMS).write_text("{}"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_copy_of_a_gguf_file_is_made_again(
    damage: str, tmp_path: Path, cache: Path
) -> None:
    expected = write_gguf(tmp_path / "model.gguf")
    load_pretrained(tmp_path / "model.gguf")
    (copy,) = cache.iterdir()
    DAMAGES[damage](copy)
    read = load_pretrained(tmp_path / "model.gguf")
    assert read.tokenizer.chat_template == a_tokenizer().chat_template
    assert_weights(read.model, expected)


def test_the_copies_of_the_last_few_gguf_files_are_kept(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "MAX_KEPT", 2)
    for kind in (Type.F32, Type.F16, Type.Q8_0, Type.F32):
        write_gguf(tmp_path / "model.gguf", kind)
        load_pretrained(tmp_path / "model.gguf")
    assert len([*cache.iterdir()]) == 2


def test_a_gguf_file_runs_in_the_engine_and_can_be_trained(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    loaded = load(tmp_path / "tiny.gguf")
    assert loaded.name == "tiny.gguf"
    assert not loaded.vocabulary.has_pieces
    assert loaded.eos_ids == {a_tokenizer().eos_token_id}
    learner = load_learner(str(tmp_path / "tiny.gguf"))
    assert learner.vocabulary.has_pieces
    assert all(weight.requires_grad for weight in learner.model.parameters())


ONES, TYPES = np.ones(2, np.float32), gguf.RopeScalingType


@pytest.mark.parametrize(
    ("more", "read"),
    [
        (lambda w: (w.add_eot_token_id(7), w.add_eom_token_id(8)), {7, 8}),
        (lambda w: w.add_eot_token_id(99999), r": tokenizer\.ggml\.eot_token_id is 99999"),
        (lambda w: w.add_rope_scaling_type(TYPES.NONE), set()),
        (lambda w: w.add_rope_scaling_type(TYPES.YARN), "rotary positions .llama.rope.scaling.ty"),
        (lambda w: w.add_rope_scaling_factor(4.0), "rotary positions .llama.rope.scaling.factor"),
        (lambda w: w.add_tensor("rope_freqs.weight", ONES), set()),
        (lambda w: w.add_tensor("rope_freqs.weight", 8 * ONES), "rotary positions .rope_freqs.w"),
    ],
)
def test_ends_and_positions_of_a_gguf_file_are_read_or_refused(
    tmp_path: Path, more: Callable[[gguf.GGUFWriter], object], read: set[int] | str
) -> None:
    write_gguf(tmp_path / "tiny.gguf", more=more)
    if isinstance(read, str):
        with pytest.raises(ModelError, match=f"tiny.gguf.*{read}"):
            load_pretrained(tmp_path / "tiny.gguf")
        return
    assert load_pretrained(tmp_path / "tiny.gguf").eos_ids == {a_tokenizer().eos_token_id, *read}


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.7, 0.999])
def test_a_truncated_gguf_file_is_an_error_with_the_next_step(
    tmp_path: Path, cache: Path, share: float
) -> None:
    file = tmp_path / "model.gguf"
    write_gguf(file)
    whole = file.read_bytes()
    file.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ModelError, match=r"model\.gguf cannot be read, as it is cut off") as caught:
        load_pretrained(file)
    assert "download it again" in str(caught.value.hint)
    assert not cache.exists()


def test_a_cache_that_cannot_be_written_is_an_error_with_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gguf(tmp_path / "model.gguf")
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="cannot be kept in") as caught:
        load_pretrained(tmp_path / "model.gguf")
    assert "XDG_CACHE_HOME" in str(caught.value.hint)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a package that holds a GGUF file and whose code fails; return the file."""
    site = tmp_path / "site"
    info = site / "a_package_of_weights-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "a_package_of_weights").mkdir()
    (site / "a_package_of_weights" / "__init__.py").write_text("raise RuntimeError")
    file = site / "a_package_of_weights" / "weights.gguf"
    write_gguf(file)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1.0\n")
    names = "a_package_of_weights/__init__.py,,\na_package_of_weights/weights.gguf,,\n"
    (info / "RECORD").write_text(names)
    monkeypatch.syspath_prepend(site)
    return file


def test_an_installed_package_of_weights_is_a_model(package: Path) -> None:
    expected = load_pretrained(package).model
    assert_weights(load_pretrained(PACKAGE).model, dict(expected.named_parameters()))


@pytest.mark.parametrize("name", ["pytest", "no-such-package", "org/name", "", "../x"])
def test_other_names_are_no_packages_of_weights(name: str) -> None:
    assert checkpoint.gguf_of_package(name) is None


@pytest.fixture
def base(tmp_path: Path) -> Path:
    write_gguf(tmp_path / "base.gguf")
    return tmp_path / "base.gguf"


def reference_of(base: Path, **places: str) -> BaseReference:
    pretrained = load_pretrained(base)
    return reference_to(pretrained.model, pretrained.tokenizer, **places)


def test_an_adapter_folder_is_its_base_with_the_adapter_merged(tmp_path: Path, base: Path) -> None:
    folder = an_adapter(tmp_path / "mine", base)
    loaded = load(folder)
    assert loaded.name == "mine"
    assert loaded.positions is PositionStrategy.CONTINUE
    expected = load_pretrained(base, dtype=FLOAT)
    ids = add_pieces(expected.model, expected.tokenizer)
    merge_adapter(expected.model, read_adapter(folder))
    assert_weights(loaded.model, dict(expected.model.named_parameters()))
    assert loaded.vocabulary.piece_ids == ids
    plain = an_adapter(tmp_path / "plain", base, has_tags=False)
    assert not load(plain).vocabulary.has_pieces, "it was not taught tags"


def test_in_bfloat16_weights_are_rounded_once_and_frequencies_never(
    tmp_path: Path, base: Path
) -> None:
    folder = an_adapter(tmp_path / "mine", base)
    whole, small = (load_pretrained(folder, dtype=d).model for d in (FLOAT, torch.bfloat16))
    assert_weights(small, {name: w.bfloat16() for name, w in whole.named_parameters()})
    for name, buffer in small.named_buffers():
        assert torch.equal(buffer, whole.get_buffer(name)), name


@pytest.mark.usefixtures("package")
def test_the_base_is_found_in_an_installed_package(tmp_path: Path, base: Path) -> None:
    places = {"package": PACKAGE, "hub_id": "some/base", "path": str(tmp_path / "gone.gguf")}
    folder = an_adapter(tmp_path / "mine", base, reference_of(base, **places))
    assert load(folder).vocabulary.has_pieces


def test_the_base_is_found_in_the_cache_of_the_hub(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = reference_of(base, hub_id="some/base", file="base.gguf", revision="abc")
    folder = an_adapter(tmp_path / "mine", base, reference)
    calls = []

    def cached(*args: object, **kwargs: object) -> str:
        calls.append((*args, kwargs["revision"], kwargs.get("local_files_only", False)))
        if not kwargs.get("local_files_only") or len(calls) == 1:
            raise OSError("not there")
        return str(base)

    monkeypatch.setattr(adapter, "cached_file", cached)
    with pytest.raises(ModelNotFoundError, match="not at hand"):
        load(folder)
    assert calls == [("some/base", "base.gguf", "abc", local) for local in (True, False)]
    load(folder)
    assert len(calls) == 3, "the hub was asked although its cache has the file"


@pytest.mark.parametrize(
    ("places", "commands"),
    [
        (
            {"package": "no-such-package", "hub_id": "some/base", "file": "base.gguf"},
            f"{WEIGHTS_COMMAND} no-such-package or hf download some/base base.gguf",
        ),
        ({"hub_id": "some/base"}, "hf download some/base"),
        ({}, "PASTA_BASE=FOLDER or FILE.gguf"),
    ],
)
def test_a_base_that_is_nowhere_is_an_error_with_the_commands_that_get_it(
    tmp_path: Path, base: Path, places: dict[str, str], commands: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    folder = an_adapter(tmp_path / "mine", base, reference_of(base, **places))
    with pytest.raises(ModelNotFoundError, match="the base of the adapter .* is not at") as caught:
        load(folder)
    assert commands in str(caught.value.hint)
    assert len(str(caught.value).splitlines()) <= 4
    monkeypatch.setenv("PASTA_BASE", str(base))
    assert load(folder).vocabulary.has_pieces, "the user can name it"


def test_an_adapter_of_another_base_is_refused(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = reference_of(base, path=str(base))
    folder = an_adapter(tmp_path / "mine", base, reference)
    other = tmp_path / "other.gguf"
    write_gguf(other, Type.Q8_0)
    monkeypatch.setenv("PASTA_BASE", str(other))
    with pytest.raises(ModelError, match="another base: the weights of this one") as caught:
        load(folder)
    assert f"PASTA_BASE={other}: " in str(caught.value)
    monkeypatch.setenv("PASTA_BASE", "/nowhere")
    with pytest.raises(ModelNotFoundError, match="PASTA_BASE=/nowhere: no folder /nowhere"):
        load(folder)
    monkeypatch.delenv("PASTA_BASE")
    assert "pasta_config.json" in str(caught.value.hint)
    an_adapter(folder, base, replace(reference, tokenizer_sha256="0" * 64))
    with pytest.raises(ModelError, match="another base: the tokenizer of this one"):
        load(folder)


def test_other_ids_of_tag_pieces_than_the_adapter_has_are_refused(
    tmp_path: Path, base: Path
) -> None:
    file = an_adapter(tmp_path / "mine", base) / "pasta_config.json"
    ids = json.loads(file.read_text())["piece_ids"]
    change_json(file, piece_ids={piece: one + 7 for piece, one in ids.items()})
    with pytest.raises(VocabularyError, match="but the tokenizer has"):
        load(tmp_path / "mine")


AUTHORS = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.1}


@pytest.mark.parametrize(
    ("settings", "sampling"),
    [
        ({}, {}),
        ({"do_sample": True, **AUTHORS}, AUTHORS),
        ({"do_sample": True}, {"temperature": 1.0}),
        (AUTHORS, AUTHORS),
        ({"do_sample": False, **AUTHORS}, {"repetition_penalty": 1.1}),
    ],
)
def test_a_folder_says_how_its_authors_sample_and_what_is_given_wins(
    tmp_path: Path, settings: dict[str, float], sampling: dict[str, float]
) -> None:
    folder = a_base_folder(tmp_path / "m")
    file = folder / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    model = Pasta.from_pretrained(folder, dtype="float32", pool_tokens=512)
    assert model.engine.loaded.sampling == sampling
    assert model.sampling_params() == SamplingParams(**sampling)  # type: ignore[arg-type]
    wanted = sampling | {"temperature": 0.2}
    assert model.sampling_params(temperature=0.2) == SamplingParams(**wanted)  # type: ignore[arg-type]
    expected = model.generate("go on", SamplingParams(**sampling, max_tokens=8))  # type: ignore[arg-type]
    assert model.generate("go on", max_tokens=8).text == expected.text
    on_servers = read_served(folder).sampling
    assert on_servers == {name: x for name, x in sampling.items() if name != "repetition_penalty"}


def test_a_base_that_nothing_proves_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base = a_base_folder(tmp_path / "base")
    a_peft_adapter(tmp_path / "a", AutoModelForCausalLM.from_pretrained(base))
    monkeypatch.setenv("PASTA_BASE", str(a_base_folder(tmp_path / "own")))
    load_pretrained(tmp_path / "a")
    assert "own is merged with" in capsys.readouterr().err


def brings(folder: Path, base: Path, change: Callable[[PreTrainedTokenizerFast], object]) -> Path:
    """Save an adapter by peft and its tokenizer, changed, beside it."""
    a_peft_adapter(folder, AutoModelForCausalLM.from_pretrained(base), **MORE_ROWS)
    tokenizer = AutoTokenizer.from_pretrained(base)
    changed = change(tokenizer)
    other = changed if isinstance(changed, PreTrainedTokenizerFast) else tokenizer
    other.save_pretrained(folder)
    return folder


FIRST_NEW = 651
MORE_ROWS = {"trainable_token_indices": dict.fromkeys(("embed_tokens", "lm_head"), [FIRST_NEW])}


def exchanged(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    data = json.loads(tokenizer.backend_tokenizer.to_str())
    vocab = data["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    backend = Tokenizer.from_str(json.dumps(data))
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        (lambda tokenizer: tokenizer.add_tokens("<new>"), None),  # its row is trained
        (lambda tokenizer: tokenizer.add_tokens(["<new>", "<more>"]), "no row of '<more>'"),
        (exchanged, "is its token .* in its base"),
    ],
)
def test_tokens_of_an_adapter_s_tokenizer_have_rows_and_their_ids_in_the_base(
    tmp_path: Path, change: Callable[[PreTrainedTokenizerFast], object], refused: str | None
) -> None:
    folder = brings(tmp_path / "a", a_base_folder(tmp_path / "base", vocab_size=700), change)
    if refused is not None:
        with pytest.raises(ModelError, match=refused):
            load_pretrained(folder)
        return
    assert load_pretrained(folder).vocabulary.encode_prompt("<new>")[-1] == FIRST_NEW


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_an_adapter_s_own_template_and_ends_are_those_of_the_model(
    tmp_path: Path, name: str
) -> None:
    base = a_base_folder(tmp_path / "base", vocab_size=700)
    template, folder = "{{ messages[0].content }} own{{ eos_token }}", tmp_path / "a"
    brings(folder, base, lambda tokenizer: setattr(tokenizer, "chat_template", template))
    if name != "tokenizer.json":
        (folder / "tokenizer.json").unlink()
        (folder / "chat_template.jinja").unlink()
        text = json.dumps({"chat_template": template}) if name.endswith("json") else template
        (folder / name).write_text(text)
    settings = {"eos_token_id": ["<unk>"], "repetition_penalty": 1.1}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    assert load_pretrained(base).tokenizer.chat_template is None
    loaded = load(folder)
    assert loaded.sampling == {"repetition_penalty": 1.1}
    assert loaded.vocabulary.tokenizer.chat_template == template
    assert loaded.eos_ids == load(base).eos_ids | {0}
    (folder / "generation_config.json").write_text("{")
    with pytest.raises(ModelError, match="generation_config.json cannot be read"):
        load_pretrained(folder)
