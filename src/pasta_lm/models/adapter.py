"""Read LoRA adapters that peft saved, and merge them into their base, exactly as peft would.

A folder holds ``adapter_config.json`` and ``adapter_model.safetensors``, and ours also
``pasta_config.json``, which names the base. Settings of peft that are not honoured here are
refused by name.

The adapters that come with the package are files ``adapter_model.int8.safetensors``: whole numbers
with a scale for each of the r vectors. They are read here; nothing writes this format any more.

Source: LoRA (Hu et al. 2021), section 4.1: W + (alpha / r) B A.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from pasta_lm.errors import ModelError, cause
from pasta_lm.models.folder import FILE_NAME, PastaConfig, read_object, write_pasta_config

CONFIG_NAME = "adapter_config.json"
WEIGHTS, INT8_WEIGHTS = "adapter_model.safetensors", "adapter_model.int8.safetensors"
_PREFIX = "base_model.model."  # before the name of each module in peft's files
_A, _B, _ROWS = ".lora_A.weight", ".lora_B.weight", ".token_adapter.trainable_tokens_delta"
_SCALE = ".scale"
_MERGED = """peft_type r lora_alpha use_rslora alpha_pattern rank_pattern fan_in_fan_out
    trainable_token_indices init_lora_weights bias"""
# For training, or for the names of layers, which the weights have too.
_HARMLESS = """auto_mapping base_model_name_or_path corda_config ensure_weight_tying eva_config
    exclude_modules inference_mode layers_pattern layers_to_transform lora_dropout megatron_config
    megatron_core peft_version qalora_group_size revision runtime_config target_modules task_type"""
# Others, such as PiSSA, take the first adapter out of the base, whose weights are other ones then.
_KEEPS_BASE = (None, True, False, "gaussian", "orthogonal", "eva")
_HINT = "merge it with peft (merge_and_unload), and save the model as a folder"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """The part of a model that training changed."""

    low_rank: Mapping[str, tuple[Tensor, Tensor]]
    """A [r, in] and B [out, r] of each linear layer, by its name; the change is B A."""
    rows: Mapping[str, Tensor]
    """Rows of trained tokens [n, d], by the name of the matrix."""
    token_ids: Mapping[str, Sequence[int]]
    """The tokens of these rows, by the name of the matrix."""


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


def is_adapter(path: Path) -> bool:
    """Return whether a folder holds an adapter, and no whole model."""
    return (path / CONFIG_NAME).is_file() and not (path / "config.json").is_file()


def read_adapter(folder: Path) -> Adapter:
    """Return the adapter of a folder, in float32."""
    file, tensors = folder / CONFIG_NAME, _read_tensors(folder)
    settings = read_object(file)
    _check_settings(file, settings)
    a, b, rows = (
        {key.removesuffix(end): tensor for key, tensor in tensors.items() if key.endswith(end)}
        for end in (_A, _B, _ROWS)
    )
    if a.keys() != b.keys() or len(tensors) != len(a) + len(b) + len(rows):
        raise ModelError(
            f"the adapter {folder} holds other weights than pairs of LoRA matrices", hint=_HINT
        )
    return Adapter(
        low_rank={
            name: (a[name], b[name] * _scale(file, settings, name, len(a[name]))) for name in a
        },
        rows=rows,
        token_ids={name: _token_ids(file, settings, name) for name in rows},
    )


def _token_ids(file: Path, settings: Mapping[str, Any], name: str) -> list[int]:
    """Return the tokens of the trained rows of a matrix, which peft names by its end."""
    of_matrix = settings.get("trainable_token_indices") or {}
    if not isinstance(of_matrix, dict):  # peft's short form, for the input embeddings
        of_matrix = {name: of_matrix}
    for key, ids in of_matrix.items():
        if f".{name}".endswith(f".{key}"):
            return list(ids)
    raise ModelError(f"{file} does not say which tokens the rows of {name} belong to")


def _check_settings(file: Path, settings: Mapping[str, Any]) -> None:
    """Refuse settings that change what is computed and are not honoured by the merging."""
    start = settings.get("init_lora_weights")
    reasons = {
        f"peft_type {settings.get('peft_type')}": settings.get("peft_type") != "LORA",
        f"bias {settings.get('bias')}": settings.get("bias") not in ("none", None),
        f"init_lora_weights {start}, which changes the base": start not in _KEEPS_BASE,
    }
    unknown = settings.keys() - {*_MERGED.split(), *_HARMLESS.split()}
    reasons |= {name: bool(settings[name]) for name in sorted(unknown)}
    if refused := [reason for reason, is_there in reasons.items() if is_there]:
        raise ModelError(f"{file} is no plain LoRA adapter: {', '.join(refused)}", hint=_HINT)


def _scale(file: Path, settings: Mapping[str, Any], name: str, rank: int) -> float:
    patterns = settings.get("alpha_pattern") or {}
    pattern = next((key for key in patterns if re.match(rf"(.*\.)?({key})$", name)), None)
    try:
        alpha = float(settings["lora_alpha"] if pattern is None else patterns[pattern])
        return alpha / (rank**0.5 if settings.get("use_rslora") else rank)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as exc:
        raise ModelError(f"{file} has no r and lora_alpha") from exc


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    """Return the matrices of an adapter by their names without peft's prefix, in float32."""
    files = [folder / name for name in (WEIGHTS, INT8_WEIGHTS)]
    file = next((file for file in files if file.is_file()), files[0])
    try:
        stored = load_file(file)
    except (OSError, SafetensorError) as exc:
        raise ModelError(
            f"the adapter's weights {file} cannot be read: {cause(exc)}",
            hint="copy the folder again; a Git LFS pointer needs `git lfs pull`",
        ) from exc
    tensors = {}
    for key, tensor in stored.items():
        if not key.endswith(_SCALE):
            scale = stored.get(key + _SCALE)
            values = tensor.float() if scale is None else tensor.float() * scale
            tensors[key.removeprefix(_PREFIX)] = values
    return tensors


def read_base(folder: Path) -> BaseReference:
    """Return the base that an adapter folder names.

    An adapter that peft saved names a folder or a hub id, and no hashes.
    """
    file = folder / FILE_NAME
    data = read_object(file).get("base") if file.is_file() else None
    if data is None:
        file = folder / CONFIG_NAME
        name = read_object(file).get("base_model_name_or_path")
        data = {"path" if Path(str(name)).exists() else "hub_id": name}
    names = {field.name for field in fields(BaseReference)}
    if not isinstance(data, dict) or not data.keys() <= names:
        raise ModelError(f"{file}: base must be an object of {', '.join(sorted(names))}")
    if wrong := [name for name, value in data.items() if not isinstance(value, str)]:
        raise ModelError(f"{file}: base.{wrong[0]} is no text: {data[wrong[0]]!r}")
    return BaseReference(**data)


@torch.no_grad()
def merge_adapter(model: PreTrainedModel, adapter: Adapter) -> None:
    """Add an adapter to the weights of its base, in place; products and sums are float32."""
    modules = dict(model.named_modules())
    for name, (a, b) in adapter.low_rank.items():
        module: Any = modules.get(name)
        is_transposed = isinstance(module, Conv1D)  # GPT-2 stores its layers as [in, out]
        shape = (len(b), a.shape[1])
        if not is_transposed and not isinstance(module, nn.Linear):
            raise _other_shapes(name, shape)
        weight = module.weight.T if is_transposed else module.weight
        if weight.shape != shape:
            raise _other_shapes(name, shape)
        weight.copy_(weight.float() + b.to(weight.device) @ a.to(weight.device))
    for name, rows in adapter.rows.items():
        module, ids = modules.get(name), list(adapter.token_ids[name])
        matrix = None if module is None else getattr(module, "weight", None)
        if matrix is None or (len(ids), matrix.shape[1]) != rows.shape or max(ids) >= len(matrix):
            raise _other_shapes(name, tuple(rows.shape))
        matrix[ids] = rows.to(matrix)


def _other_shapes(name: str, shape: tuple[int, ...]) -> ModelError:
    return ModelError(
        f"the adapter belongs to another base: this one has no weight {name} of shape {shape}",
        hint=f"give the base that the adapter's {FILE_NAME} names",
    )


def save_adapter(
    folder: Path,
    adapter: Adapter,
    *,
    base: BaseReference,
    config: PastaConfig | None,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Write an adapter as the files that peft loads, and ``pasta_config.json``, which has its base.

    Its r is the same for all layers. Without rows of the tag pieces the model has those that
    ``add_pieces`` makes; without a config it was not taught the tags.
    """
    import peft

    folder.mkdir(parents=True, exist_ok=True)
    (rank,) = {len(a) for a, _ in adapter.low_rank.values()}
    tensors = {f"{name}{_ROWS}": rows for name, rows in adapter.rows.items()}
    for name, (a, b) in adapter.low_rank.items():
        tensors |= {f"{name}{_A}": a, f"{name}{_B}": b}
    stored = {
        f"{_PREFIX}{name}": tensor.detach().to("cpu", dtype).contiguous()
        for name, tensor in tensors.items()
    }
    save_file(stored, folder / WEIGHTS, metadata={"format": "pt"})
    peft.LoraConfig(
        task_type="CAUSAL_LM",
        base_model_name_or_path=base.hub_id or base.path,
        revision=base.revision,
        r=rank,
        lora_alpha=rank,  # B holds the scale
        target_modules=sorted(adapter.low_rank),
        trainable_token_indices={name: [*ids] for name, ids in adapter.token_ids.items()} or None,
        inference_mode=True,
    ).save_pretrained(str(folder))
    reference = {name: value for name, value in asdict(base).items() if value is not None}
    write_pasta_config(folder, config, {"base": reference})
