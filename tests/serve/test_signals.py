"""The end of ``pasta serve``, as a process with signals: what runs is finished, or told."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from pasta_lm.cli.terminal import INTERRUPTED
from tests.serve.conftest import CHAT, LIMIT_S, streamed, text_of
from tests.serve.load import CHAT_PATH, script_of

TEXT = script_of("slow", 7).plain_text
STREAM = {**CHAT, "stream": True}


class Started:
    """A server as a process, whose log is a file: a pipe that nobody reads would stop it."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(command, stderr=file, cwd=Path(__file__).parents[2])

    def wait_for(self, pattern: str) -> str:
        """Wait until the log says something, and return its first group."""
        has_ended = False
        while not (found := re.search(pattern, self.log.read_text("utf-8"))):
            assert not has_ended, self.log.read_text("utf-8")
            has_ended = self.process.poll() is not None
            time.sleep(0.01)
        return found[1]

    def shut_down(self) -> None:
        """Send SIGTERM and wait until it is said that it has arrived."""
        self.process.send_signal(signal.SIGTERM)
        self.wait_for("(Shutting down)")


@contextmanager
def server(folder: Path, file: str, *changes: str) -> Iterator[tuple[Started, httpx.Client]]:
    """Start a server that waits for a file, and yield it with a client; kill it in the end."""
    settings = [part for change in changes for part in ("--set", change)]
    module = [sys.executable, "-m", "tests.serve.slow_server"]
    place = file if file == "hang" else str(folder / file)
    started = Started([*module, place, "serve", "--port", "0", *settings], folder / "log")
    try:
        address = started.wait_for(r"running on (http://[\w.:]+)")
        with httpx.Client(base_url=address, timeout=LIMIT_S) as client:
            yield started, client
    finally:
        started.process.kill()
        started.process.wait()


def is_refused(address: str) -> bool:
    """Return whether nobody listens; connections from before the end of listening get 503."""
    for _ in range(20):
        try:
            assert httpx.post(address, json=CHAT, timeout=LIMIT_S).status_code == 503
        except httpx.TransportError:
            return True
    return False


def wait_until_running(client: httpx.Client, number: int = 1) -> None:
    """Wait until so many requests run; a stream has no piece before its first text."""
    running = f'num_requests_running{{model_name="script"}} {number}.0'
    while running not in client.get("/metrics").text:
        time.sleep(0.01)


def test_sigterm_refuses_new_work_finishes_what_runs_and_exits_with_0(tmp_path: Path) -> None:
    beside = ThreadPoolExecutor(2)
    with server(tmp_path, "may step", "queue.drain_s=300") as (started, client), beside:
        address = f"{client.base_url}{CHAT_PATH}"
        asked = [
            beside.submit(httpx.post, address, json=body, timeout=LIMIT_S)
            for body in (CHAT, STREAM)
        ]
        wait_until_running(client, 2)
        started.shut_down()
        assert is_refused(address)
        (tmp_path / "may step").touch()
        whole, stream = (one.result() for one in asked)
        assert whole.json()["choices"][0]["message"]["content"] == TEXT
        assert text_of(streamed(stream)) == TEXT
        assert started.process.wait(LIMIT_S) == 0


def test_at_the_deadline_what_runs_is_told_so_and_the_exit_is_0(tmp_path: Path) -> None:
    with server(tmp_path, "never", "queue.drain_s=0.3") as (started, client):
        with client.stream("POST", CHAT_PATH, json=STREAM) as stream:
            wait_until_running(client)
            started.shut_down()
            assert streamed(stream)[-1]["error"]["code"] == "shutdown"
        assert started.process.wait(LIMIT_S) == 0


@pytest.mark.parametrize("file", ["never", "hang"])
def test_a_second_signal_ends_at_once(file: str, tmp_path: Path) -> None:
    with (
        server(tmp_path, file, "queue.drain_s=3600") as (started, client),
        client.stream("POST", CHAT_PATH, json=STREAM) as stream,
    ):
        wait_until_running(client)
        started.shut_down()
        started.process.send_signal(signal.SIGTERM)
        assert started.process.wait(LIMIT_S) == INTERRUPTED
        with pytest.raises(httpx.TransportError):
            list(stream.iter_lines())


@pytest.mark.slow
def test_a_step_that_hangs_cannot_keep_the_process(tmp_path: Path) -> None:
    with (
        server(tmp_path, "hang", "queue.drain_s=0") as (started, client),
        client.stream("POST", CHAT_PATH, json=STREAM),
    ):
        started.shut_down()
        assert started.process.wait(LIMIT_S) == 0
