"""The end of ``pasta serve``, as a process with signals: what runs is finished, or told."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from pasta_lm.cli.exit_codes import INTERRUPTED
from tests.serve.conftest import CHAT, text_of
from tests.serve.load import CHAT_PATH, script_of

TEXT = script_of("slow", 7).plain_text
STREAM = {**CHAT, "stream": True}
LIMIT_S = 120  # a process that does not end fails the test


@contextmanager
def server(file: object, *changes: str) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """Start a server and yield it with a client; kill it if it is still there."""
    settings = [part for change in changes for part in ("--set", change)]
    module = [sys.executable, "-m", "tests.serve.slow_server", str(file)]
    command = [*module, "serve", "--port", "0", *settings]
    root = Path(__file__).parents[2]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=root)
    try:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if found := re.search(r"running on (http://[\w.:]+)", line):
                with httpx.Client(base_url=found[1], timeout=LIMIT_S) as client:
                    yield process, client
                break
        else:
            raise AssertionError("".join(lines))
    finally:
        process.kill()
        process.wait()


def shut_down(process: subprocess.Popen[str]) -> None:
    """Send SIGTERM and wait until it is said that it has arrived."""
    process.send_signal(signal.SIGTERM)
    assert process.stderr is not None
    next(line for line in process.stderr if "Shutting down" in line)


def is_refused(address: str) -> bool:
    """Return whether nobody listens; connections from before the end of listening get 503."""
    for _ in range(20):
        try:
            assert httpx.post(address, json=CHAT).status_code == 503
        except httpx.TransportError:
            return True
    return False


def wait_until_running(client: httpx.Client, number: int = 1) -> None:
    """Wait until so many requests run; a stream has no piece before its first text."""
    while (
        f'num_requests_running{{model_name="script"}} {number}.0' not in client.get("/metrics").text
    ):
        pass


def pieces_of(lines: Iterator[str]) -> list[dict[str, Any]]:
    """Return the objects of a stream, whose last line must be ``[DONE]``."""
    data = [line[6:] for line in lines if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    return [json.loads(one) for one in data[:-1]]


def test_sigterm_refuses_new_work_finishes_what_runs_and_exits_with_0(tmp_path: Path) -> None:
    may_step = tmp_path / "may step"
    with server(may_step) as (process, client), ThreadPoolExecutor(2) as beside:
        address = f"{client.base_url}{CHAT_PATH}"
        asked = [beside.submit(httpx.post, address, json=b, timeout=99) for b in (CHAT, STREAM)]
        wait_until_running(client, 2)
        shut_down(process)
        assert is_refused(address)
        may_step.touch()
        whole, stream = (one.result() for one in asked)
        assert whole.json()["choices"][0]["message"]["content"] == TEXT
        assert text_of(pieces_of(stream.iter_lines())) == TEXT
        assert process.wait(LIMIT_S) == 0


def test_at_the_deadline_what_runs_is_told_so_and_the_exit_is_0(tmp_path: Path) -> None:
    with server(tmp_path / "never", "queue.drain_s=0.3") as (process, client):
        with client.stream("POST", CHAT_PATH, json=STREAM) as stream:
            wait_until_running(client)
            shut_down(process)
            assert pieces_of(stream.iter_lines())[-1]["error"]["code"] == "shutdown"
        assert process.wait(LIMIT_S) == 0


@pytest.mark.parametrize("file", ["never", "hang"])
def test_a_second_signal_ends_at_once(file: str) -> None:
    with (
        server(file, "queue.drain_s=3600") as (process, client),
        client.stream("POST", CHAT_PATH, json=STREAM) as stream,
    ):
        shut_down(process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == INTERRUPTED
        with pytest.raises(httpx.TransportError):
            list(stream.iter_lines())


@pytest.mark.slow
def test_a_step_that_hangs_cannot_keep_the_process() -> None:
    with (
        server("hang", "queue.drain_s=0") as (process, client),
        client.stream("POST", CHAT_PATH, json=STREAM),
    ):
        shut_down(process)
        assert process.wait(LIMIT_S) == 0
