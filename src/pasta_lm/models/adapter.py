"""Save, read and merge adapters: LoRA matrices, rows of the tag pieces, and the name of the base.

A folder holds ``adapter_config.json`` and ``adapter_model.safetensors`` as peft writes them, and
``pasta_config.json``, which also names the base. With 8-bit integers, which peft cannot read, the
weights' file is ``adapter_model.int8.safetensors``. The tokenizer is the base's.

Source: LoRA (Hu et al. 2021), section 4.1: W + (alpha / r) B A.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from pasta_lm.errors import ModelError, cause
from pasta_lm.language.tags import PIECES
from pasta_lm.models.folder import (
    FILE_NAME,
    PastaConfig,
    read_object,
    write_pasta_config,
)

CONFIG_NAME = "adapter_config.json"
WEIGHTS, INT8_WEIGHTS = "adapter_model.safetensors", "adapter_model.int8.safetensors"
_PREFIX = "base_model.model."  # before the name of each module in peft's files
_A, _B, _ROWS = ".lora_A.weight", ".lora_B.weight", ".token_adapter.trainable_tokens_delta"
_SCALE = ".scale"
_MAX_INT8 = 127
# Settings of peft that change what is computed; an adapter that has one is refused.
_UNSUPPORTED = ("use_dora", "use_rslora", "modules_to_save", "rank_pattern", "alpha_pattern")
_SAMPLE = 4096  # values of each weight that the hash of a model reads
_PROBE = "Hello, world!  1234 items:\n\n- it's 5 o'clock\tin a caf\u00e9 \u2615"


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseReference:
    """The model that an adapter belongs to: where it can be had, and the hashes that prove it."""

    path: str | None = None  # a model folder or a GGUF file of this machine
    package: str | None = None  # an installed distribution that holds a GGUF file
    hub_id: str | None = None
    revision: str | None = None  # of the hub's repository
    file: str | None = None  # the GGUF file in the repository, if the weights are one
    weights_sha256: str | None = None  # as ``hash_weights`` gives it; None: not checked
    tokenizer_sha256: str | None = None  # as ``hash_tokenizer`` gives it; None: not checked


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """The part of a model that training changed."""

    low_rank: Mapping[str, tuple[Tensor, Tensor]]
    """A [r, in] and B [out, r] of each linear layer, by its name in the model."""
    rows: Mapping[str, Tensor]
    """The rows of the tag pieces [68, d], in the order of ``PIECES``, by the matrix's name."""
    scale: float = 1.0
    """The factor of the products B A."""


def save_adapter(
    folder: Path | str,
    adapter: Adapter,
    *,
    base: BaseReference,
    config: PastaConfig | None,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Write an adapter folder.

    Args:
        folder: It is made if it is missing.
        adapter: Its r is the same for all layers; without rows of the tag pieces the model has
            those that ``add_pieces`` makes.
        base: The model that the adapter belongs to, as ``reference_to`` gives it.
        config: The record of the training; None: the model was not taught the tags.
        dtype: How the matrices are stored: float32, bfloat16 or int8 (a scale for each of the r
            vectors). Rows of tag pieces are bfloat16 at least.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    low_rank = adapter.low_rank
    (rank,) = {len(a) for a, _ in low_rank.values()} | {b.shape[1] for _, b in low_rank.values()}
    is_int8 = dtype is torch.int8
    tensors = {
        f"{_PREFIX}{name}{_ROWS}": matrix.to(torch.bfloat16 if is_int8 else dtype).contiguous()
        for name, matrix in adapter.rows.items()
    }
    for name, (a, b) in low_rank.items():
        for suffix, matrix, dim in ((_A, a, 1), (_B, b, 0)):
            key = f"{_PREFIX}{name}{suffix}"
            if is_int8:
                tensors[key], tensors[key + _SCALE] = _to_int8(matrix, dim)
            else:
                tensors[key] = matrix.to(dtype).contiguous()
    save_file(tensors, folder / (INT8_WEIGHTS if is_int8 else WEIGHTS), metadata={"format": "pt"})
    token_ids = [config.piece_ids[piece] for piece in PIECES] if config else []
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base.hub_id or base.path,
        "revision": base.revision,
        "r": rank,
        "lora_alpha": adapter.scale * rank,
        "target_modules": sorted(low_rank),
        "trainable_token_indices": {name: token_ids for name in adapter.rows} or None,
        "inference_mode": True,
    }
    text = json.dumps(settings, indent=2)
    (folder / CONFIG_NAME).write_text(text + "\n", encoding="utf-8")
    known = {name: value for name, value in asdict(base).items() if value is not None}
    write_pasta_config(folder, config, {"base": known})


def is_adapter(path: Path) -> bool:
    """Return whether a folder holds an adapter, and no whole model."""
    return (path / CONFIG_NAME).is_file() and not (path / "config.json").is_file()


def read_adapter(folder: Path) -> Adapter:
    """Return the adapter of a folder, in float32.

    Raises:
        ModelError: a file is missing or broken, or peft's settings ask for more than LoRA.
    """
    settings = read_object(folder / CONFIG_NAME)
    extra = [name for name in _UNSUPPORTED if settings.get(name)]
    if settings.get("peft_type") != "LORA" or extra or settings.get("bias", "none") != "none":
        what = ", ".join(extra) or f"{settings.get('peft_type')}, bias {settings.get('bias')}"
        raise ModelError(
            f"{folder / CONFIG_NAME} is no plain LoRA adapter: {what}",
            hint="merge it with peft (merge_and_unload), and save the model as a folder",
        )
    try:
        scale = float(settings["lora_alpha"]) / settings["r"]
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as exc:
        raise ModelError(f"{folder / CONFIG_NAME} has no r and lora_alpha") from exc
    tensors = _read_tensors(folder)
    names = [key.removesuffix(_A) for key in tensors if key.endswith(_A)]
    rows = {key.removesuffix(_ROWS): one for key, one in tensors.items() if key.endswith(_ROWS)}
    if len(tensors) != 2 * len(names) + len(rows) or any(one + _B not in tensors for one in names):
        raise ModelError(f"the adapter {folder} holds other weights than pairs of LoRA matrices")
    low_rank = {name: (tensors[name + _A], tensors[name + _B]) for name in names}
    return Adapter(low_rank=low_rank, rows=rows, scale=scale)


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    """Return the matrices of an adapter by their names without peft's prefix, in float32."""
    files = [folder / name for name in (WEIGHTS, INT8_WEIGHTS)]
    file = next((one for one in files if one.is_file()), files[0])
    try:
        stored = load_file(file)
    except (OSError, SafetensorError) as exc:
        raise ModelError(
            f"the adapter's weights {file} cannot be read: {cause(exc)}",
            hint="copy the folder again; it holds this file as it was saved",
        ) from exc
    found = {}
    for key, tensor in stored.items():
        if not key.endswith(_SCALE):
            scale = stored.get(key + _SCALE)
            values = tensor.float() if scale is None else tensor.float() * scale
            found[key.removeprefix(_PREFIX)] = values
    return found


def _to_int8(matrix: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return whole numbers and the scale of each of the r vectors along a dimension."""
    matrix = matrix.float()
    scale = matrix.abs().amax(dim, keepdim=True).clamp(min=1e-30) / _MAX_INT8
    return (matrix / scale).round().to(torch.int8).contiguous(), scale


@torch.no_grad()
def merge_adapter(model: PreTrainedModel, adapter: Adapter, piece_ids: Mapping[str, int]) -> None:
    """Add an adapter to the weights of its base, in place; products and sums are float32.

    Raises:
        ModelError: the model has no layers of these names and shapes.
    """
    modules = dict(model.named_modules())
    for name, (a, b) in adapter.low_rank.items():
        weight = _weight(modules, name, torch.Size((len(b), a.shape[1])))
        change = adapter.scale * (b.to(weight.device) @ a.to(weight.device))
        weight.copy_(weight.float() + change)
    token_ids = [piece_ids[piece] for piece in PIECES if piece in piece_ids]
    for name, rows in adapter.rows.items():
        matrix = _weight(modules, name, None)
        if (len(token_ids), matrix.shape[1]) != rows.shape:
            raise _other_shapes(name, rows.shape)
        matrix[token_ids] = rows.to(matrix)


def _weight(modules: Mapping[str, Any], name: str, shape: torch.Size | None) -> Tensor:
    weight = getattr(modules.get(name), "weight", None)
    if not isinstance(weight, Tensor) or shape not in (None, weight.shape):
        raise _other_shapes(name, shape)
    return weight


def _other_shapes(name: str, shape: torch.Size | None) -> ModelError:
    wanted = "" if shape is None else f" of shape {tuple(shape)}"
    return ModelError(
        f"the adapter belongs to another base: this one has no weight {name}{wanted}",
        hint=f"give the base that the adapter's {FILE_NAME} names",
    )


def tag_rows(model: PreTrainedModel, piece_ids: Mapping[str, int]) -> dict[str, Tensor]:
    """Return the rows of the tag pieces [68, d] in each matrix of token rows, by its name."""
    ids = [piece_ids[piece] for piece in PIECES]
    return {name: weight.detach()[ids].clone() for name, weight in token_matrices(model).items()}


def token_matrices(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the matrices with a row for each token [V, d], by name; tied ones once."""
    modules: list[Any] = [model.get_input_embeddings()]
    if not model.config.get_text_config().tie_word_embeddings:
        modules.append(model.get_output_embeddings())
    names = {id(module): name for name, module in model.named_modules()}
    return {names[id(module)]: module.weight for module in modules}


# --- the base


def reference_to(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, **places: str | None
) -> BaseReference:
    """Return the reference to a model that has not been trained yet, tag pieces or none.

    Args:
        model: The base; its rows of tag pieces are left out of the hash.
        tokenizer: Its tokenizer.
        places: Where it can be had: ``path``, ``package``, ``hub_id``, ``revision``, ``file``.
    """
    return BaseReference(
        **places,
        weights_sha256=hash_weights(model),
        tokenizer_sha256=hash_tokenizer(tokenizer),
    )


def hash_weights(model: PreTrainedModel) -> str:
    """Return a hash of a model's weights that neither its dtype nor its tag rows change.

    Of each weight it reads the name, the shape (of token matrices the width) and the first 4,096
    values in bfloat16: a folder, a GGUF file and its dequantised copy have the same hash.
    """
    digest = hashlib.sha256()
    rows = {id(weight) for weight in token_matrices(model).values()}
    for name, weight in sorted(model.named_parameters()):
        shape = tuple(weight.shape)[id(weight) in rows :]
        digest.update(f"{name} {shape}\n".encode())
        values = weight.detach().flatten()[:_SAMPLE].to("cpu", torch.bfloat16)
        digest.update(values.view(torch.int16).numpy().tobytes())
    return digest.hexdigest()


def hash_tokenizer(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a hash of a tokenizer's ids and of how it splits a probe, tag pieces left out."""
    ids = {token: one for token, one in tokenizer.get_vocab().items() if token not in PIECES}
    probe = tokenizer.encode(_PROBE, add_special_tokens=False)
    return hashlib.sha256(json.dumps([sorted(ids.items()), probe]).encode()).hexdigest()


def read_base(folder: Path) -> BaseReference:
    """Return the base that an adapter folder names.

    An adapter that peft saved names a folder or a hub id, and no hashes.

    Raises:
        ModelError: ``pasta_config.json`` or ``adapter_config.json`` is broken, or names no base.
    """
    file = folder / FILE_NAME
    given = read_object(file).get("base") if file.is_file() else None
    if given is None:
        file = folder / CONFIG_NAME
        name = read_object(file).get("base_model_name_or_path")
        given = {"path" if Path(str(name)).exists() else "hub_id": name}
    names = {field.name for field in fields(BaseReference)}
    if not isinstance(given, dict) or not given.keys() <= names:
        raise ModelError(f"{file}: base must be an object of {', '.join(sorted(names))}")
    if wrong := [name for name, value in given.items() if not isinstance(value, str)]:
        raise ModelError(f"{file}: base.{wrong[0]} is no text: {given[wrong[0]]!r}")
    return BaseReference(**given)


def check_base(
    reference: BaseReference, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Check by the hashes that a model is the base of an adapter.

    Raises:
        ModelError: its weights or its tokenizer are others.
    """
    pairs = (
        ("weights", reference.weights_sha256, hash_weights(model)),
        ("tokenizer", reference.tokenizer_sha256, hash_tokenizer(tokenizer)),
    )
    for what, wanted, found in pairs:
        if wanted not in (None, found):
            raise ModelError(
                f"the adapter belongs to another base: the {what} of this one have the hash "
                f"{found[:12]}, not {str(wanted)[:12]}",
                hint=f"give the base that the adapter's {FILE_NAME} names",
            )
