"""LoRA adapters that peft saved, merged into their base exactly as peft would; and their base.

A folder holds ``adapter_config.json`` and ``adapter_model.safetensors``, and ours also
``pasta_config.json``, which names the base and the hashes that prove it. Settings of peft that are
not honoured here are refused by name.

Source: LoRA (Hu et al. 2021), section 4.1: W + (alpha / r) B A.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.utils.hub import cached_file

from pasta_lm.errors import ModelError, ModelNotFoundError, PastaError, cause
from pasta_lm.journal import Row
from pasta_lm.language.tags import PIECES
from pasta_lm.machine import WEIGHTS_COMMAND
from pasta_lm.models.checkpoint import first_line, gguf_of_package, note, read_tokenizer
from pasta_lm.models.folder import FILE_NAME, PastaConfig, read_object, write_pasta_config
from pasta_lm.models.pieces import token_matrices

CONFIG_NAME = "adapter_config.json"
# The second is that of the adapters that come with the package: whole numbers with a scale for
# each of the r vectors. It is read here; nothing writes this format any more.
WEIGHTS, INT8_WEIGHTS = "adapter_model.safetensors", "adapter_model.int8.safetensors"
_PREFIX = "base_model.model."  # before the name of each module in peft's files
_A, _B, _ROWS = ".lora_A.weight", ".lora_B.weight", ".token_adapter.trainable_tokens_delta"
_SCALE = ".scale"
# Settings that are merged, and those that only training or the names of layers need.
_KNOWN = """peft_type r lora_alpha fan_in_fan_out bias
    trainable_token_indices init_lora_weights auto_mapping base_model_name_or_path corda_config
    ensure_weight_tying eva_config exclude_modules inference_mode layers_pattern lora_dropout
    layers_to_transform megatron_config megatron_core peft_version qalora_group_size revision
    runtime_config target_modules task_type"""
# Others, such as PiSSA, take the first adapter out of the base, whose weights are other ones then.
_KEEPS_BASE = (None, True, False, "gaussian", "orthogonal", "eva")
_HINT = "merge it with peft (merge_and_unload), and save the model as a folder"
Change = Callable[[PreTrainedModel, str, Tensor], None]
"""Called with a model, the name of a layer, and a new weight for it [O, I]."""
VARIABLE = "PASTA_BASE"  # names the machine's copy of a base in the environment
_SAMPLE = 4096  # values of each weight that the hash of a model reads
_PROBE = "Hello, world!  1234 items:\n\n- it's 5 o'clock\tin a caf\u00e9 \u2615"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """The part of a model that training changed, by the names of layers and matrices."""

    low_rank: Mapping[str, tuple[Tensor, Tensor]]  # A [r, in] and B [out, r]; the change is B A
    rows: Mapping[str, Tensor]  # [n, d], of the tokens that were trained
    token_ids: Mapping[str, Sequence[int]]  # one for each of these rows


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseReference:
    """The model that an adapter belongs to: where it can be had, and the hashes that prove it."""

    path: str | None = None  # a model folder or a GGUF file of this machine
    package: str | None = None  # an installed distribution that holds a GGUF file
    hub_id: str | None = None
    revision: str | None = None  # that of the hub's repository
    file: str | None = None  # the GGUF file in the repository, if the weights are one
    weights_sha256: str | None = None  # None: not checked
    tokenizer_sha256: str | None = None  # None: not checked


def is_adapter(path: Path) -> bool:
    return (path / CONFIG_NAME).is_file() and not (path / "config.json").is_file()


def read_adapter(folder: Path) -> Adapter:
    file, tensors = folder / CONFIG_NAME, _read_tensors(folder)
    settings = _read_settings(file)
    a, b, rows = (
        {key.removesuffix(end): tensor for key, tensor in tensors.items() if key.endswith(end)}
        for end in (_A, _B, _ROWS)
    )
    if a.keys() != b.keys() or len(tensors) != len(a) + len(b) + len(rows):
        reason = f"the adapter {folder} holds other weights than pairs of LoRA matrices"
        others = sorted(key for key in tensors if not key.endswith((_A, _B, _ROWS)))
        raise ModelError(": ".join((reason, *others[:1])), hint=_HINT)
    try:
        scales = {name: float(settings["lora_alpha"]) / len(a[name]) for name in a}
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as exc:
        raise ModelError(f"{file} gives no scale by r and lora_alpha") from exc
    low_rank = {name: (a[name], b[name] * scale) for name, scale in scales.items()}
    token_ids = {name: _token_ids(file, settings, name) for name in rows}
    return Adapter(low_rank=low_rank, rows=rows, token_ids=token_ids)


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    file = folder / INT8_WEIGHTS
    file = file if file.is_file() else folder / WEIGHTS
    try:
        stored = load_file(file)
    except (OSError, SafetensorError) as exc:
        reason = f"the adapter's weights {file} cannot be read: {cause(exc)}"
        hint = "copy the folder again; a Git LFS pointer needs `git lfs pull`"
        raise ModelError(reason, hint=hint) from exc
    return {
        key.removeprefix(_PREFIX): tensor.float() * stored.get(f"{key}{_SCALE}", 1.0)
        for key, tensor in stored.items()
        if not key.endswith(_SCALE)
    }


def _read_settings(file: Path) -> Row:
    settings = read_object(file)
    kind, bias, start = map(settings.get, ("peft_type", "bias", "init_lora_weights"))
    unknown = sorted(settings.keys() - {*_KNOWN.split()})
    refused = [f"peft_type {kind}"] * (kind != "LORA")
    refused += [f"bias {bias}"] * (bias not in ("none", None))
    refused += [f"init_lora_weights {start}, which changes the base"] * (start not in _KEEPS_BASE)
    if refused := refused + [name for name in unknown if settings[name]]:
        raise ModelError(f"{file} is no plain LoRA adapter: {', '.join(refused)}", hint=_HINT)
    return settings


def _token_ids(file: Path, settings: Row, name: str) -> list[int]:
    of_matrix = settings.get("trainable_token_indices") or {}
    if isinstance(of_matrix, list):  # peft's short form, for the input embeddings
        return of_matrix
    for key, ids in of_matrix.items() if isinstance(of_matrix, dict) else ():
        if f".{name}".endswith(f".{key}"):  # peft names a matrix by its end
            return list(ids)
    raise ModelError(f"{file} does not say which tokens the rows of {name} belong to")


@torch.no_grad()
def merge_adapter(model: PreTrainedModel, adapter: Adapter, change: Change | None = None) -> None:
    """Add an adapter to the weights of its base, in place; products and sums are float32."""
    modules = dict(model.named_modules())
    weights = {name: _weight(model, modules.get(name), name) for name in adapter.low_rank}
    for name, (a, b) in adapter.low_rank.items():
        if weights[name].shape != (len(b), a.shape[1]):
            raise _other_base(f"this one has no weight {name} of shape {(len(b), a.shape[1])}")
    for name, rows in adapter.rows.items():
        module, ids = modules.get(name), list(adapter.token_ids[name])
        matrix = None if module is None else getattr(module, "weight", None)
        if matrix is None or (len(ids), matrix.shape[1]) != rows.shape or max(ids) >= len(matrix):
            raise _other_base(f"this one has no weight {name} of shape {tuple(rows.shape)}")
        matrix[ids] = rows.to(matrix)
    for name, (a, b) in adapter.low_rank.items():
        weight = weights.pop(name)
        total = weight.float() + b.to(weight.device) @ a.to(weight.device)
        if change is None or isinstance(modules[name], transformers.Conv1D):
            weight.copy_(total)
        else:
            change(model, name, total)


def _weight(model: PreTrainedModel, module: nn.Module | None, name: str) -> Tensor:
    """Return the weight [O, I] of a linear layer; an empty one of any other module."""
    if module is model.get_output_embeddings() and len(token_matrices(model)) == 1:
        raise ModelError(f"the adapter changes {name}, which is tied to the input embeddings")
    if isinstance(module, transformers.Conv1D):
        return module.weight.T
    return module.weight if isinstance(module, nn.Linear) else torch.empty(0)


_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


def adapted_tokenizer(
    folder: Path, base: PreTrainedTokenizerFast, adapter: Adapter, known: Collection[str]
) -> PreTrainedTokenizerFast:
    """Return the tokenizer and chat template that an adapter brings; what it lacks is its base's.

    Of tokens that the base lacks it must have rows, or they are known to get some.
    """
    settings, template = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    template_of_base = base.chat_template
    tokenizer, ids = base, dict[str, int]()
    if any((folder / name).is_file() for name in _VOCABULARIES):
        try:
            ids = (tokenizer := read_tokenizer(folder)).get_vocab()
        except Exception as exc:  # whatever a damaged file does in tokenizers
            reason = f"the tokenizer of the adapter {folder} cannot be read: {first_line(exc)}"
            raise ModelError(reason, hint="save tokenizer and adapter again") from exc
    elif template.is_file():
        tokenizer.chat_template = template.read_text(encoding="utf-8")
    elif settings.is_file():
        tokenizer.chat_template = read_object(settings).get("chat_template")
    tokenizer.chat_template = tokenizer.chat_template or template_of_base
    of_base, rows = base.get_vocab(), {i for ids in adapter.token_ids.values() for i in ids}
    for token, token_id in sorted(ids.items()):
        if of_base.get(token, token_id) != token_id:
            reason = f"{token!r} is its token {token_id}, and {of_base[token]} in its base"
            raise ModelError(f"the tokenizer of the adapter {folder}: {reason}", hint=_HINT)
        if token not in of_base and token not in known and token_id not in rows:
            reason = f"the adapter {folder} has no row of {token!r}, a token that its base lacks"
            raise ModelError(reason, hint=_HINT)
    return tokenizer


def _other_base(reason: str) -> ModelError:
    hint = f"give the base that {FILE_NAME} or {CONFIG_NAME} of the adapter names"
    return ModelError(f"the adapter belongs to another base: {reason}", hint=hint)


def save_adapter(
    folder: Path, adapter: Adapter, *, base: BaseReference, config: PastaConfig | None,
    dtype: torch.dtype = torch.bfloat16,
) -> None:  # fmt: skip
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
        task_type="CAUSAL_LM", base_model_name_or_path=base.hub_id or base.path,
        revision=base.revision, r=rank, lora_alpha=rank,  # B holds the scale
        target_modules=sorted(adapter.low_rank), inference_mode=True,
        trainable_token_indices={name: [*ids] for name, ids in adapter.token_ids.items()} or None,
    ).save_pretrained(str(folder))  # fmt: skip
    reference = {name: value for name, value in asdict(base).items() if value is not None}
    write_pasta_config(folder, config, {"base": reference})


def read_base(folder: Path) -> BaseReference:
    """Return the base that an adapter folder names; one that peft saved has no hashes."""
    file = folder / FILE_NAME
    data = read_object(file).get("base") if file.is_file() else None
    if data is None:
        name = read_object(file := folder / CONFIG_NAME).get("base_model_name_or_path")
        data = {"path" if Path(str(name)).exists() else "hub_id": name}
    names = sorted(field.name for field in fields(BaseReference))
    is_known = isinstance(data, dict) and data.keys() <= {*names}
    if not is_known or {*map(type, data.values())} - {str}:
        raise ModelError(f"{file}: base must be an object of texts: {', '.join(names)}")
    return BaseReference(**data)


def reference_to(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, **source: str | None
) -> BaseReference:
    weights, words = hash_weights(model), hash_tokenizer(tokenizer)
    return BaseReference(**source, weights_sha256=weights, tokenizer_sha256=words)


def place_of(source: str) -> dict[str, str]:
    if Path(source).exists():
        return {"path": str(Path(source).resolve())}
    return {"package" if gguf_of_package(source) else "hub_id": source}


def hash_weights(model: PreTrainedModel) -> str:
    """Return a hash of a model's weights that neither its dtype nor its tag rows change.

    Of each weight it reads the name, the shape (of token matrices the width) and the first 4,096
    values in bfloat16: a folder, a GGUF file and its dequantised copy have the same hash.
    """
    digest = hashlib.sha256()
    rows = {id(weight) for weight in token_matrices(model).values()}
    for name, weight in sorted(model.named_parameters()):
        digest.update(f"{name} {tuple(weight.shape[id(weight) in rows :])}\n".encode())
        values = weight.detach().flatten()[:_SAMPLE].to("cpu", torch.bfloat16)
        digest.update(values.view(torch.int16).numpy().tobytes())
    return digest.hexdigest()


def hash_tokenizer(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a hash of a tokenizer's ids and of how it splits a probe, tag pieces left out."""
    ids = sorted(pair for pair in tokenizer.get_vocab().items() if pair[0] not in PIECES)
    probe = tokenizer.encode(_PROBE, add_special_tokens=False)
    return hashlib.sha256(json.dumps([ids, probe]).encode()).hexdigest()


def check_base(
    reference: BaseReference, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    measured = reference_to(model, tokenizer)
    for kind in ("weights", "tokenizer"):
        expected, actual = (getattr(base, f"{kind}_sha256") for base in (reference, measured))
        if expected is not None and expected != actual:
            hashes = f"{actual[:12]}, not {expected[:12]}"
            raise _other_base(f"the {kind} of this one have the hash {hashes}")


@contextmanager
def base_named() -> Iterator[None]:
    """Name the variable ``PASTA_BASE``, if it is set, in an error about a base."""
    try:
        yield
    except PastaError as exc:
        name = os.environ.get(VARIABLE)
        if name is None or VARIABLE in str(exc.message):
            raise
        hint = f"unset {VARIABLE}; it is for adapters of one base alone. {exc.hint or ''}".rstrip()
        raise type(exc)(f"{VARIABLE}={name}: {exc.message}", hint=hint) from exc


def find_base(folder: Path) -> tuple[str | Path, str | None]:
    """Return the base that an adapter names, and its revision: from this machine or the hub.

    ``PASTA_BASE`` in the environment names the machine's own copy: a folder, a file or a hub id.
    """
    base, reason, commands = read_base(folder), "", list[str]()
    if name := os.environ.get(VARIABLE):
        if base.weights_sha256 is None:
            unproved = f"has no hashes and names {base.path or base.hub_id or 'none'}"
            note(f"{VARIABLE}={name} is merged with {folder}, which {unproved}")
        return name, None
    if base.path is not None and Path(base.path).exists():
        return base.path, None
    if base.package is not None:
        if file := gguf_of_package(base.package):
            return file, None
        commands.append(f"{WEIGHTS_COMMAND} {base.package}")
    if base.hub_id is not None:
        try:
            return _find_on_hub(base.hub_id, base.file, base.revision), base.revision
        except (OSError, ValueError) as exc:
            reason = f" ({first_line(exc)})"
        commands.append(f"hf download {base.hub_id} {base.file or ''}".rstrip())
    reason = f"the base of the adapter {folder} is not at hand{reason}"
    hint = " or ".join((*commands, "PASTA_BASE=FOLDER or FILE.gguf, your own copy"))
    raise ModelNotFoundError(reason, hint=hint)


def _find_on_hub(hub_id: str, name: str | None, revision: str | None) -> str | Path:
    file = name or "config.json"
    try:
        path = cached_file(hub_id, file, revision=revision, local_files_only=True)
    except OSError:  # not in the hub's cache
        path = cached_file(hub_id, file, revision=revision)
    return Path(str(path)) if name else hub_id
