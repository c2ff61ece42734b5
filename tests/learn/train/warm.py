"""A ``pasta`` whose libraries are loaded once: each call is a fork of one process that has them.

Loading torch and transformers is most of what a script with twenty small commands does. The same
``main`` runs, in a process of its own, with the caller's arguments, environment and streams.

    python -m tests.learn.train.warm serve SOCKET
    python tests/learn/train/warm.py call SOCKET ARGUMENTS...
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

LONGEST = 1 << 20


def call(path: str, arguments: list[str]) -> int:
    """Let the server carry a command out; return its exit code."""
    asked = {"arguments": arguments, "folder": os.getcwd(), "environment": {**os.environ}}
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        socket.send_fds(server, [json.dumps(asked).encode() + b"\n"], [0, 1, 2])
        return int(server.recv(16) or 1)


def serve(path: str) -> None:
    """Carry commands out, each in a fork, until killed."""
    load()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        while True:
            caller, _ = listening.accept()
            with caller:
                data, streams, _, _ = socket.recv_fds(caller, LONGEST, 3)
                while not data.endswith(b"\n"):
                    data += caller.recv(LONGEST)
                if os.fork() == 0:
                    code = carry_out(json.loads(data), streams)
                    caller.sendall(str(code).encode())
                    os._exit(code)
                for stream in streams:
                    os.close(stream)


def load() -> None:
    """Import what commands import, and compute nothing: threads would not survive a fork."""
    import accelerate  # noqa: F401
    import peft  # noqa: F401
    from transformers import GemmaForCausalLM, Trainer  # noqa: F401

    import pasta_lm.cli  # noqa: F401
    from pasta_lm.learn.annotate import run  # noqa: F401
    from pasta_lm.learn.train import preference, sft  # noqa: F401
    from pasta_lm.measure import alpaca_report, speed  # noqa: F401


def carry_out(asked: dict[str, object], streams: list[int]) -> int:
    """Run ``pasta`` in this fork; return its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    sys.stdout, sys.stderr = (open(n, "w", closefd=False) for n in (1, 2))  # noqa: SIM115
    os.chdir(str(asked["folder"]))
    os.environ.clear()
    os.environ.update(asked["environment"])  # type: ignore[call-overload]
    sys.argv = ["pasta", *asked["arguments"]]  # type: ignore[misc]
    from pasta_lm.cli import main

    try:
        main()
        code = 0
    except SystemExit as exc:
        code = exc.code if isinstance(exc.code, int) else int(exc.code is not None)
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    what, where, *rest = sys.argv[1:]
    if what == "serve":
        serve(where)
    sys.exit(call(where, rest))
