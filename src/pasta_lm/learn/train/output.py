"""The output folder of a training: checked before anything is loaded, never overwritten unasked."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from pasta_lm.errors import PastaError
from pasta_lm.learn.train.trainer import is_first
from pasta_lm.run_folder import RunFolder

RECIPE = "recipe.json"
MAY_CHANGE = {
    *("model.base", "model.baseline", "data.file", "data.exclude", "train.out"),  # moved files
    *("train.steps", "train.epochs", "train.rounds"),  # a longer run
    *("train.workers", "train.log_steps", "train.save_steps", "train.tensorboard"),
}
"""Keys of a recipe that may change when a run is continued."""
_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


@contextmanager
def open_output(out: str, *, resume: bool, overwrite: bool) -> Iterator[RunFolder]:
    """Hold the folder of a run; of several processes the first one.

    Raises:
        UsageError: it holds a run, and neither ``resume`` nor ``overwrite`` is set; or another
            process writes there.
        PastaError: the disk cannot be written.
    """
    run = RunFolder(Path(out), RECIPE)
    if is_first():
        run.require_new(resume=resume, overwrite=overwrite)
    with run.locked() if is_first() else nullcontext(), full_disk_named(run.path):
        yield run


@contextmanager
def full_disk_named(out: Path) -> Iterator[None]:
    """Raise a PastaError if the disk is full, whichever library writes to it."""
    try:
        yield
    except Exception as exc:
        # Each library has an error class of its own; all of them quote the system.
        reason = next((text for text in map(os.strerror, _FULL) if text in str(exc)), None)
        if reason is None or isinstance(exc, PastaError):
            raise
        raise PastaError(
            f"{out} cannot be written: {reason}",
            hint="make room and run the same command again, a training with --resume",
        ) from exc
