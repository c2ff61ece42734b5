"""The command line of a scripted server: where it listens, and how it fails."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from pasta_lm.testing.scripted_server import Faults, Play, ScriptedServer

FAULTS = ("latency_s", "too_many", "server_error", "hang", "truncated", "refusal")


def server_arguments(description: str, port: int) -> ArgumentParser:
    """Return a parser with what all scripted servers can be told."""
    parser = ArgumentParser(description=description)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=port)
    parser.add_argument("--api-key")
    for name in FAULTS:
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=0.0)
    return parser


def serve(play: Play, given: Namespace) -> None:
    """Serve until interrupted, then say how requests ended."""
    faults = Faults(**{name: getattr(given, name) for name in FAULTS})
    server = ScriptedServer(play, faults, api_key=given.api_key, host=given.host, port=given.port)
    sys.stderr.write(f"{server.base_url}, model 'scripted'\n")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        sys.stderr.write(f"{dict(server.outcomes)}\n")
