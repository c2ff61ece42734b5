"""The end of ``pasta serve``, as a process with signals: what runs is finished, or told."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from pasta_lm.cli.terminal import INTERRUPTED
from tests.processes import Process
from tests.serve.conftest import CHAT, LIMIT_S, streamed, text_of
from tests.serve.load import CHAT_PATH, script_of
from tests.serve.slow_server import serve

TEXT = script_of("slow", 7).plain_text
STREAM = {**CHAT, "stream": True}


@contextmanager
def server(folder: Path, file: str, *changes: str) -> Iterator[tuple[Process, httpx.Client]]:
    """Start a server that waits for a file, and yield it with a client; kill it in the end."""
    settings = [part for change in changes for part in ("--set", change)]
    path = file if file == "hang" else folder / file
    started = Process(path, "serve", "--port", 0, *settings, log=folder / "log", command=serve)
    try:
        address = started.wait_for(r"running on (http://[\w.:]+)")
        with httpx.Client(base_url=address, timeout=LIMIT_S) as client:
            yield started, client
    finally:
        started.kill()


def shut_down(started: Process) -> None:
    """Send SIGTERM and wait until it is said that it has arrived."""
    started.send(signal.SIGTERM)
    started.wait_for("(Shutting down)")


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
        shut_down(started)
        assert is_refused(address)
        (tmp_path / "may step").touch()
        whole, stream = (one.result() for one in asked)
        assert whole.json()["choices"][0]["message"]["content"] == TEXT
        assert text_of(streamed(stream)) == TEXT
        assert started.finish() == 0


def test_at_the_deadline_what_runs_is_told_so_and_the_exit_is_0(tmp_path: Path) -> None:
    with server(tmp_path, "never", "queue.drain_s=0.3") as (started, client):
        with client.stream("POST", CHAT_PATH, json=STREAM) as stream:
            wait_until_running(client)
            shut_down(started)
            assert streamed(stream)[-1]["error"]["code"] == "shutdown"
        assert started.finish() == 0


@pytest.mark.parametrize("file", ["never", "hang"])
def test_a_second_signal_ends_at_once(file: str, tmp_path: Path) -> None:
    with (
        server(tmp_path, file, "queue.drain_s=3600") as (started, client),
        client.stream("POST", CHAT_PATH, json=STREAM) as stream,
    ):
        wait_until_running(client)
        shut_down(started)
        started.send(signal.SIGTERM)
        assert started.finish() == INTERRUPTED
        with pytest.raises(httpx.TransportError):
            list(stream.iter_lines())


@pytest.mark.slow
def test_a_step_that_hangs_cannot_keep_the_process(tmp_path: Path) -> None:
    with (
        server(tmp_path, "hang", "queue.drain_s=0") as (started, client),
        client.stream("POST", CHAT_PATH, json=STREAM),
    ):
        shut_down(started)
        assert started.finish() == 0
