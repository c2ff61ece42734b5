"""Load a model and its tokenizer: from a folder, the hub, a GGUF file, a package or an adapter."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import transformers

from pasta_lm.journal import Row
from pasta_lm.language.tags import PIECES
from pasta_lm.models import adapter as adapters
from pasta_lm.models import checkpoint
from pasta_lm.models.folder import FILE_NAME, PastaConfig, check_same_ids, read_pasta_config
from pasta_lm.models.generation import KEY, listed, read_settings, settle
from pasta_lm.models.names import GGUF, model_name, resolve
from pasta_lm.models.pieces import add_pieces, tag_pieces, token_matrices
from pasta_lm.models.vocabulary import Vocabulary
from pasta_lm.run_folder import hash_files

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PARTS = {
    "weights": ("*.safetensors", "*.bin", "*.gguf"),
    "tokenizer": ("*token*.json", "vocab*", "merges*", "chat_template*", "*.jinja", "*.model"),
    "configuration": ("*config.json",),
}
"""Patterns of the files of a model, by what they are part of."""

PAGE_OUT = 21  # advice to Linux (madvise): drops what a file has, harms nothing else
NUM_COMPARED = 256  # rows of the input and the output matrix
MAX_ROUNDING = 0.3  # share of a matrix's norm; two roundings of Qwen's differ by 0.08


@dataclass(frozen=True, slots=True)
class Pretrained:
    """A model with its adapter merged, its tokenizer, and the record of its training."""

    model: transformers.PreTrainedModel
    tokenizer: transformers.PreTrainedTokenizerFast
    name: str
    eos_ids: frozenset[int]  # all that end a turn
    config: PastaConfig | None = None  # None: the source does not say how it was trained

    @property
    def piece_ids(self) -> dict[str, int]:
        return dict(self.config.piece_ids) if self.config else tag_pieces(self.tokenizer)

    @property
    def vocabulary(self) -> Vocabulary:
        thinking = self.config.thinking if self.config else None
        vocabulary = Vocabulary(self.tokenizer, self.piece_ids, thinking)
        vocabulary.thinks = self.config.thinks if self.config else None
        return vocabulary


def load_pretrained(
    source: str | Path, *, dtype: torch.dtype | None = None, change: adapters.Change | None = None
) -> Pretrained:
    """Load a model and its tokenizer.

    The source is one of ``Pasta.from_pretrained``. Without a dtype weights are as saved, those of
    a GGUF file float32; with ``change`` an adapter's sums are passed to it in float32.
    """
    folder = _folder(source := resolve(source))
    is_adapter = adapters.is_adapter(Path(folder))
    read = _read_adapted(Path(folder), dtype, change) if is_adapter else _read(folder, dtype)
    return _named(source, folder, read)


def read_training(source: str | Path) -> PastaConfig | None:
    """Return the record of a model's training, from any source; None: it has none."""
    folder = _folder(resolve(source))
    file, _ = (checkpoint.file_of(folder, name) for name in (FILE_NAME, "tokenizer.json"))
    return None if file is None else read_pasta_config(file.parent)


def files_of(source: str | Path) -> tuple[list[Path], list[str]]:
    """Return the files that ``load_pretrained`` reads, and the names of what is on the hub."""
    sources = [resolve(source)]
    if adapters.is_adapter(Path(sources[0])):
        sources.append(adapters.find_base(Path(sources[0]))[0])
    files, names = list[Path](), list[str]()
    for name in sources:
        path = checkpoint.gguf_of_package(str(name)) or Path(name)
        names += [] if path.exists() else [str(name)]
        files += filter(Path.is_file, path.iterdir() if path.is_dir() else [path])
    return files, names


def hashes_of(key: str, source: str | Path | None, parts: Iterable[str] = PARTS) -> dict[str, str]:
    """Return a hash of each part of a model, for a run that begins with it; ``key`` names it.

    What comes from the hub is known by its name alone.
    """
    files, names = ([], []) if source is None else files_of(source)
    known = {f"{key} (name)": " ".join(names)} if names else {}
    for part in parts if files or not names else ():
        matching = [file for file in files if any(map(file.match, PARTS[part]))]
        known[f"{key} ({part})"] = " ".join(sorted(map(hash_files, matching)))
    return known


def load_without_weights(source: str | Path) -> Pretrained:
    read_settings(source)
    return _named(source, source, checkpoint.read_without_weights(source))


def _named(source: str | Path, folder: str | Path, read: checkpoint.Checkpoint) -> Pretrained:
    return Pretrained(*read, model_name(source), settle(*read, str(folder)), read_training(folder))


def _folder(source: str | Path) -> str | Path:
    file = Path(source) if Path(source).suffix == GGUF else checkpoint.gguf_of_package(str(source))
    return source if file is None else checkpoint.dequantised(file)


def _read(
    folder: str | Path, dtype: torch.dtype | None, revision: str | None = None
) -> checkpoint.Checkpoint:
    read_settings(folder, revision)  # which transformers ignores if it is no JSON
    return checkpoint.read_checkpoint(folder, dtype, revision)


def _read_adapted(
    folder: Path, dtype: torch.dtype | None, change: adapters.Change | None
) -> checkpoint.Checkpoint:
    adapter, config = adapters.read_adapter(folder), read_pasta_config(folder)
    # As saved, so that the hash holds; float32 is kept, so that nothing is rounded twice.
    with adapters.base_named():
        source, revision = adapters.find_base(folder)
        base = _folder(source)
        model, tokenizer = _read(base, None, revision)
        adapters.check_base(adapters.read_base(folder), model, tokenizer)
        ends = settle(model, tokenizer, str(base))
    known = PIECES if config is not None else ()
    tokenizer = adapters.adapted_tokenizer(folder, tokenizer, adapter, known)
    if dtype is torch.float32 or change is not None:
        others = (m.weight for m in model.modules() if isinstance(m, transformers.Conv1D))
        _cast([*token_matrices(model).values(), *others], torch.float32)
    if config is not None:
        add_pieces(model, tokenizer)
        check_same_ids(config.piece_ids, tokenizer.get_vocab())
    with adapters.base_named():
        adapters.merge_adapter(model, adapter, change or partial(_set_weight, dtype=dtype))
    if dtype is not None:
        _cast(model.parameters(), dtype)
        model.config.dtype = dtype
    if changes := read_settings(folder):
        changes[KEY] = [*listed(changes.get(KEY)), *sorted(ends)]
        model.generation_config.update(**changes)
    return model, tokenizer


def _cast(weights: Iterable[torch.Tensor], dtype: torch.dtype) -> None:
    # Weights only, not buffers: RoPE's frequencies are float32.
    for weight in weights:
        before = weight.data
        weight.data = before.to(dtype)
        leave_memory(before)


def _set_weight(
    model: transformers.PreTrainedModel, name: str, value: torch.Tensor, dtype: torch.dtype | None
) -> None:
    weight = model.get_parameter(f"{name}.weight")
    before = weight.data
    weight.data = value.to(dtype or before.dtype)
    leave_memory(before)


def leave_memory(weight: torch.Tensor) -> None:
    """Let the pages of a weight leave memory that has been replaced: its file has them, if any."""
    with suppress(AttributeError, OSError):  # not on Linux
        first = -(-weight.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        size = max(0, (weight.data_ptr() + weight.nbytes - first) // mmap.PAGESIZE * mmap.PAGESIZE)
        if weight.device.type == "cpu":
            ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(size), PAGE_OUT)


def num_parameters(model: transformers.PreTrainedModel) -> int:
    """Return the number of weights, those of a tied output matrix once.

    GGUF files can hold it twice, rounded in two ways: then the two nearly agree.
    """
    modules = model.get_input_embeddings(), model.get_output_embeddings()
    first, last = map(matrix_of, modules)
    num_weights = int(model.num_parameters())
    if first is last or first.shape != last.shape:
        return num_weights
    ids = torch.arange(0, len(first), -(-len(first) // NUM_COMPARED))
    a, b = (getattr(m, "rows", matrix_of(m).__getitem__)(ids).float() for m in modules)
    return num_weights - last.numel() * bool((a - b).norm() < MAX_ROUNDING * a.norm())


def matrix_of(module: torch.nn.Module) -> torch.Tensor:
    """Return the weight of an embedding or a linear layer, or the codes that stand for it."""
    return next(module.parameters(recurse=False))


def last_position(model: transformers.PreTrainedModel) -> int | None:
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    for parameters in rope_parameters(model.config):
        # Beyond the original length other factors would apply, to every response in the pass.
        if parameters.get("rope_type") == "longrope":
            context = parameters.get("original_max_position_embeddings", context)
    return None if context is None else int(context) - 1


def rope_parameters(config: transformers.PreTrainedConfig) -> list[Row]:
    parameters = getattr(config.get_text_config(), "rope_parameters", None) or {}
    return [value for value in parameters.values() if isinstance(value, dict)] or [parameters]
