"""Models as they are decoded, kept in the cache: the next start reads one file.

It holds the list of operations, the weights in the layouts that these read, and what else the
engine asks. It is named by the files, versions and processor that it was made with. Without it a
model is loaded, merged, tested and traced from its own files.
"""

from __future__ import annotations

import gc
import hashlib
import logging
import os
import platform
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from pasta_lm.engines.cpu import library
from pasta_lm.engines.cpu.int8 import INT8
from pasta_lm.engines.cpu.kernels import MAX_COPIED_ELEMENTS
from pasta_lm.engines.cpu.library import HugePages
from pasta_lm.engines.gpu.devices import usable_device, weights_dtype
from pasta_lm.engines.local import loading
from pasta_lm.engines.local.loading import LoadedModel
from pasta_lm.errors import UnsupportedModelError
from pasta_lm.machine import cache_folder, installed_version, processor
from pasta_lm.models.checkpoint import note
from pasta_lm.models.load import files_of
from pasta_lm.models.vocabulary import Vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)

PACKAGE = Path(__file__).parents[2]
LIBRARIES = ("torch", "transformers", "tokenizers")
STORED = (
    *("name", "eos_ids", "kind", "positions", "trained_strategy", "fork_bias", "join", "device"),
    *("is_int8", "dtype", "vocab_size", "num_tokens", "max_position", "num_parameters"),
    *("layer_shapes", "fast_logits", "sampling"),
)
MIN_BYTES = 10_000_000  # of a model's files: smaller ones are read as fast
MAX_KEPT = 6  # models of the cache
PICKLE_PROTOCOL = 5
MIN_FREE = 12  # bytes a weight that must be free on the disk: three times the file at most


class PreparedModel(LoadedModel):
    """A model of the cache; what is not stored of it is asked of the whole model, loaded then."""

    def __init__(self, stored: dict[str, object], load: Callable[[], LoadedModel]) -> None:
        vocabulary = Vocabulary(*stored["vocabulary"])  # type: ignore[misc]
        vars(self).update(stored, vocabulary=vocabulary)
        self._load = load

    @cached_property
    def model(self) -> PreTrainedModel:  # type: ignore[override]
        return self._load().model


def load(source: str | Path, *, dtype: str | None = None, device: str | None = None) -> LoadedModel:
    """Load a model as ``loading.load`` does; on a CPU from the cache, or so that it is there."""
    load_whole = partial(loading.load, source, dtype=dtype, device=device)
    place = usable_device(device)
    if place.type != "cpu":
        return load_whole()
    sources = files_of(source)
    if sources is None or sum(each.stat().st_size for each in sources) < MIN_BYTES:
        return load_whole()
    weights = None if dtype == INT8 else weights_dtype(dtype, place)
    key = repr((_states(sources), dtype if weights is None else str(weights), _versions()))
    file = cache_folder() / "prepared" / hashlib.sha256(key.encode()).hexdigest()[:16]
    if (stored := _read(file)) is None:
        note(f"preparing {source} for this processor")
        loaded = load_whole()
        if loaded.num_parameters > MAX_COPIED_ELEMENTS or loaded.fast_logits is None:
            return loaded
        try:
            _write(file, loaded)
        except (OSError, RuntimeError, TypeError, AttributeError) as exc:
            logger.info("%s is not kept: %s", loaded.name, exc)
            return loaded
        if (stored := _read(file)) is None:
            return loaded
        del loaded
        gc.collect()  # the graph refers to itself
        library.give_back_memory()
    return PreparedModel(stored, load_whole)


@cache
def _versions() -> list[str | None]:
    digest = hashlib.sha256()
    for folder in ("engines/cpu", "engines/local", "models", "interpreter", "language"):
        for file in sorted((PACKAGE / folder).glob("*.py")):
            digest.update(file.read_bytes())
    versions = [*map(installed_version, LIBRARIES), platform.python_version()]
    return [digest.hexdigest(), library.version(), processor(), *versions]


def _states(files: Iterable[Path]) -> list[tuple[str, int, int]]:
    states = ((str(file.absolute()), file.stat()) for file in files)
    return [(name, state.st_size, state.st_mtime_ns) for name, state in sorted(states)]


def _read(file: Path) -> dict[str, object] | None:
    pages = HugePages()

    def copied(storage: torch.UntypedStorage, _: str) -> torch.UntypedStorage:
        return pages.copy(torch.empty(0, dtype=torch.uint8).set_(storage)).untyped_storage()

    try:
        stored: dict[str, object]
        stored = torch.load(file, map_location=copied, mmap=True, weights_only=False)  # type: ignore[arg-type]
    except Exception as exc:  # whatever a damaged file does
        logger.info("%s is not read: %s", file, exc)
        return None
    return stored


def _write(file: Path, loaded: LoadedModel) -> None:
    stored = {name: getattr(loaded, name) for name in STORED}
    with suppress(UnsupportedModelError):
        stored["rotations"] = loaded.rotations
    vocabulary = loaded.vocabulary
    stored["vocabulary"] = vocabulary.tokenizer, dict(vocabulary.piece_ids)
    file.parent.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(file.parent).free < MIN_FREE * loaded.num_parameters:
        raise OSError("the disk is almost full")
    part = file.with_suffix(f".{os.getpid()}")
    try:
        torch.save(stored, part, pickle_protocol=PICKLE_PROTOCOL)
        part.replace(file)
        for old in sorted(file.parent.glob(16 * "?"), key=lambda each: each.stat().st_mtime)[
            :-MAX_KEPT
        ]:
            old.unlink(missing_ok=True)
    finally:
        part.unlink(missing_ok=True)
