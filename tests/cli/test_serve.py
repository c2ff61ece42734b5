"""``pasta serve`` as a process: the answers of ``pasta run``; serve/test_signals.py ends it."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from openai import OpenAI

from tests.cli.conftest import Pasta

LIMIT_S = 120  # longest wait for the end of a process


@contextmanager
def server(*flags: object) -> Iterator[tuple[subprocess.Popen[str], OpenAI]]:
    """Start a server on a free port and yield it with a client; kill it if it is still there."""
    command = [sys.executable, "-m", "pasta_lm", "serve", "--port", "0", *map(str, flags)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if found := re.search(r"running on (http://[\w.:]+)", line):
                yield process, OpenAI(base_url=f"{found[1]}/v1", api_key="key", max_retries=0)
                break
        else:
            raise AssertionError("".join(lines))
    finally:
        process.kill()
        process.wait()


def test_the_answer_is_that_of_pasta_run_and_sigterm_ends_with_0(
    pasta: Pasta, taught_folder: Path
) -> None:
    flags = ("--max-tokens", 40, "--temperature", 1, "--seed", 2)
    expected = pasta("run", "hello", "--model", taught_folder, *flags, "--json").json
    with server("--model", taught_folder, "--api-key", "key") as (process, client):
        asked = {"model": taught_folder.name, "max_tokens": 40, "temperature": 1, "seed": 2}
        messages = [{"role": "user", "content": "hello"}]
        answer = client.chat.completions.create(messages=messages, **asked)  # type: ignore[call-overload]
        assert (answer.model, expected["model"]) == (taught_folder.name,) * 2
        assert answer.choices[0].message.content == expected["text"]
        assert answer.usage.to_dict().items() >= expected["usage"].items()
        assert [one["num_tokens"] for one in answer.pasta["choices"][0]["threads"]] == [
            one["num_tokens"] for one in expected["threads"]
        ]
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        log = [json.loads(line) for line in process.stderr]
        assert process.wait(LIMIT_S) == 0
    (line,) = [one for one in log if one["message"] == "request"]
    assert line["path"] == "/v1/chat/completions"
    assert "hello" not in json.dumps(line)


def test_in_a_terminal_it_greets_and_writes_plain_lines(taught_folder: Path) -> None:
    main, side = pty.openpty()
    command = [sys.executable, "-m", "pasta_lm", "serve", "--port", "0", "--model", taught_folder]
    process, text = subprocess.Popen(command, stderr=side), ""
    while "ends it" not in text and process.poll() is None:
        text += os.read(main, 4096).decode()
    if found := re.search(r"page +(http://[\w.:]+)", text):
        urlopen(f"{found[1]}/health").close()
        while "/health" not in text:
            text += os.read(main, 4096).decode()
    process.kill()
    process.wait()
    assert re.search(
        rf"serving {taught_folder.name} .*parameters .*/chat.html.*/v1\r\n", text, re.S
    )
    assert re.search(r"^[\d:]{8} 200 GET /health, \d\.\d\d s\r$", text, re.M)
    assert "{" not in text
