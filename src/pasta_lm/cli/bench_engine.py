"""``pasta bench engine``: how long a pass takes, and peers with the same weights beside it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from pasta_lm.cli.flags import Device, Dtype, Json, Model, option
from pasta_lm.cli.tables import number, print_json, print_table
from pasta_lm.errors import PastaError, UsageError

NOTHING = "none"
_IN_GGUF = {"int8": "q8_0", "float8": "q8_0"}  # other names of dtypes


def engine(
    model: Model = None,
    dtype: Dtype = None,
    device: Device = None,
    threads: Annotated[
        int, option("--threads", metavar="N", min=1, help="CPU threads of all engines.")
    ] = 1,
    rows: Annotated[
        str, option("--rows", metavar="T,T", help="Threads of a response, one token each a pass.")
    ] = "1,2,4,8,16",
    context: Annotated[
        str, option("--context", metavar="N,N", help="Tokens of the prompt; peers get the first.")
    ] = "128",
    peers: Annotated[
        str,
        option("--peers", metavar="NAMES", help="generate (transformers), llama.cpp, or none."),
    ] = "generate,llama.cpp",
    answers: Annotated[
        Path | None,
        option(
            "--answers", metavar="FILE", help="Annotated answers, to replay for the efficiency."
        ),
    ] = None,
    limit: Annotated[
        int | None, option("--limit", metavar="N", min=1, help="Replay only the first N answers.")
    ] = None,
    json: Json = False,
) -> None:
    """Measure the time of a pass, alone and beside peers.

    A pass feeds one token of each thread. Figures are medians of rounds that take turns. A peer
    that is not installed is null in the JSON; llama.cpp is the package llama-cpp-python.
    """
    from pasta_lm.cli.terminal import bars, silence_libraries
    from pasta_lm.measure.engine_speed import EngineBenchmark, measure_engine, measure_replay
    from pasta_lm.models.shipped import BUILTIN

    settings = EngineBenchmark(
        rows=numbers("--rows", rows),
        contexts=numbers("--context", context),
        peers=tuple(peers.split(",")) if peers != NOTHING else (),
        num_cpu_threads=threads,
    )
    silence_libraries()
    os.environ["OMP_NUM_THREADS"] = str(threads)  # torch reads it once, when it is imported
    from pasta_lm.engines.local.loading import load

    source = model or BUILTIN
    loaded = load(source, dtype=dtype, device=device)
    kind = _IN_GGUF.get(loaded.dtype_name, loaded.dtype_name)
    with bars() as progress, _gguf_of(source, kind) as gguf:
        found = measure_engine(
            loaded, settings, gguf, lambda done, total: progress("rounds", done, total)
        )
        found["model"] = model or BUILTIN
        if answers is not None:
            found["replayed"] = measure_replay(
                loaded, answers, limit, lambda done, total: progress("answers", done, total)
            )
    if json:
        print_json(found)
    else:
        _print(found)


def numbers(flag: str, given: str) -> tuple[int, ...]:
    """Read a list of numbers from a flag; anything else is a ``UsageError``."""
    try:
        return tuple(int(part) for part in given.split(","))
    except ValueError:
        raise UsageError(f"{flag} is {given!r}, no list of numbers", hint="1,2,4") from None


@contextmanager
def _gguf_of(source: str | Path, dtype: str) -> Iterator[Callable[[], Path | None]]:
    """Provide a function that writes the model as a GGUF file, which is gone at the end."""
    from pasta_lm.models.export.gguf_file import export_gguf

    with TemporaryDirectory() as folder:

        def write() -> Path | None:
            file = Path(folder) / "model.gguf"
            try:
                export_gguf(source, file, dtype)
            except PastaError as exc:
                typer.echo(f"pasta: no figures of llama.cpp: {exc}", err=True)
                return None
            return file

        yield write


def _print(found: Mapping[str, Any]) -> None:
    peer = (found["peers"]["llama.cpp"] or {}).get("step_ms", {})
    rows = [
        [
            f"{context} tokens, {count} rows",
            number(value),
            number(_peer_of(found, peer, context, count)),
        ]
        for context, table in found["contexts"].items()
        for count, value in table.items()
    ]
    print_table(["context and rows", "ms a pass", "llama.cpp"], rows)
    generate = found["peers"]["generate"] or {}
    typer.echo()
    print_table(
        ["sequential", found["model"], "generate"],
        [
            ["tokens/s", number(found["sequential_tokens_per_s"], 1),
             number(generate.get("tokens_per_s"), 1)],
            ["share of the bandwidth limit", number(found["bandwidth_share"], 2), ""],
        ],
    )  # fmt: skip
    if "replayed" in found:
        figures = found["replayed"]["multi_block"]
        typer.echo(
            f"\nreplayed: {figures['num_documents']} answers of two blocks or more, efficiency "
            f"{number(figures['efficiency'])}"
        )
    machine = found["machine"]
    typer.echo(
        f"\n{found['dtype']} on {found['device']}, {found['weights']} weights; {machine['cpu']}, "
        f"{machine['threads']} thread(s), torch {machine['torch']}"
    )


def _peer_of(found: Mapping[str, Any], peer: Mapping[str, float], context: str, count: str) -> Any:
    return peer.get(count) if context == str(found["context"]) else None
