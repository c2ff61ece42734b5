"""Measure a server under load, with the flags and the result file of vLLM's benchmark."""

from __future__ import annotations

import asyncio
import json
import os
import time
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pasta_lm.cli.bench_engine import engine
from pasta_lm.cli.bench_load import load
from pasta_lm.cli.flags import option
from pasta_lm.cli.tables import number, print_table

if TYPE_CHECKING:
    from pasta_lm.measure.serving import LoadSettings

app = typer.Typer(help="Measure speed.", no_args_is_help=True, rich_markup_mode=None)

ROWS = {
    "requests that succeeded": "completed",
    "requests that failed": "failed",
    "duration, s": "duration",
    "input tokens": "total_input_tokens",
    "output tokens": "total_output_tokens",
    "requests / s": "request_throughput",
    "output tokens / s": "output_throughput",
    "parallelism, mean": "parallelism",
    "critical path, mean": "critical_path_tokens",
}
TIMES = {"time to first token": "ttft", "time per output token": "tpot"} | {
    "inter-token latency": "itl",
    "end-to-end latency": "e2el",
}
KINDS = ("mean", "median", "p99")


@app.callback()
def bench() -> None:
    """Measure speed."""


app.command()(engine)
app.command()(load)


@app.command()
def serve(
    base_url: Annotated[
        str, option("--base-url", metavar="URL", help="The server.")
    ] = "http://127.0.0.1:8000",
    model: Annotated[
        str | None, option("--model", metavar="NAME", help="Default: the server's first model.")
    ] = None,
    dataset_name: Annotated[
        str, option("--dataset-name", metavar="NAME", help="random words, or custom prompts.")
    ] = "random",
    dataset_path: Annotated[
        Path | None,
        option("--dataset-path", metavar="FILE.jsonl", help='Objects with a "prompt", one a line.'),
    ] = None,
    num_prompts: Annotated[
        int, option("--num-prompts", metavar="N", min=1, help="Requests to send.")
    ] = 1000,
    request_rate: Annotated[
        float, option("--request-rate", metavar="R", help="Requests a second; inf: all at once.")
    ] = inf,
    max_concurrency: Annotated[
        int | None,
        option("--max-concurrency", metavar="N", min=1, help="Requests at the same time."),
    ] = None,
    random_input_len: Annotated[
        int, option("--random-input-len", metavar="N", min=1, help="Words of a random prompt.")
    ] = 1024,
    random_output_len: Annotated[
        int, option("--random-output-len", metavar="N", min=1, help="Tokens of each answer.")
    ] = 128,
    result_filename: Annotated[
        Path | None, option("--result-filename", metavar="FILE.json", help="Save the result here.")
    ] = None,
    burstiness: Annotated[float, typer.Option("--burstiness", hidden=True)] = 1.0,
    save_result: Annotated[bool, typer.Option("--save-result", hidden=True)] = False,
    seed: Annotated[int, typer.Option("--seed", hidden=True)] = 0,
) -> None:
    """Send prompts to a server and measure its answers.

    Any OpenAI-compatible server will do. The result file has the keys of vLLM's benchmark, and the
    parallelism of the answers if the server is ours. OPENAI_API_KEY is the key of the server.
    --save-result without a file name makes one up; --burstiness below 1 makes gaps less even.
    """
    from pasta_lm.cli.terminal import write_text
    from pasta_lm.measure.serving import LoadSettings

    settings = LoadSettings(
        dataset_name=dataset_name,
        dataset_path=dataset_path,
        num_prompts=num_prompts,
        request_rate=request_rate,
        burstiness=burstiness,
        max_concurrency=max_concurrency,
        random_input_len=random_input_len,
        random_output_len=random_output_len,
        seed=seed,
    )
    found = asyncio.run(_measure(settings, base_url, model))
    if save_result and result_filename is None:
        result_filename = Path(f"serve-{time.strftime('%Y%m%d-%H%M%S')}.json")
    if result_filename is not None:
        write_text(result_filename, json.dumps(found) + "\n")
    _print(found)


async def _measure(settings: LoadSettings, base_url: str, model: str | None) -> dict[str, Any]:
    from pasta_lm.learn.chat.timed import TimedClient
    from pasta_lm.measure.serving import figures, send

    client = TimedClient(base_url, api_key=os.environ.get("OPENAI_API_KEY") or None)
    try:
        return figures(settings, await send(settings, client, model))
    finally:
        await client.close()


def _print(found: dict[str, Any]) -> None:
    rows = [[title, number(found[key])] for title, key in ROWS.items()]
    print_table(["", found["model_id"]], rows)
    typer.echo()
    times = [
        [title, *(number(found[f"{kind}_{name}_ms"]) for kind in KINDS)]
        for title, name in TIMES.items()
    ]
    print_table(["ms", *KINDS], times)
