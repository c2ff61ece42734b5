"""Hardware, software and commit, as stored answers and reports name them."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pasta_lm.strategies.model import Pasta


def provenance(model: Pasta, version: str) -> dict[str, str]:
    """Return what a stored answer says of the model's machine and of this version."""
    loaded = model.engine.loaded
    device = str(loaded.device)
    named = machine_of(model) or device
    return {
        "hardware": named if "cuda" in device else f"{named}, {processor()}",
        "dtype": str(loaded.dtype).removeprefix("torch."),
        "commit": commit() or f"release {version}",
        "version": version,
    }


def machine_of(model: Pasta) -> str | None:
    """Return the name of the device on which a model runs; None if it is not known."""
    from pasta_lm.engines.torch.self_test import devices

    device = str(model.engine.loaded.device)
    return next((name for name in devices() if name.startswith(device)), None)


def commit() -> str | None:
    """Return the commit of this code, with a plus if files were changed; None: no repository."""
    folder = Path(__file__).parent
    head = _git(folder, "rev-parse", "--short=12", "HEAD")
    if head is None:
        return None
    return head + ("+" if _git(folder, "status", "--porcelain", "--", str(folder.parent)) else "")


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def processor() -> str:
    """Return the name of this machine's processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text("utf-8").splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
