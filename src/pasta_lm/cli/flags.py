"""The flags that several verbs share, and checks of their values."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pasta_lm.errors import UsageError
from pasta_lm.models.names import dtype_name

if TYPE_CHECKING:
    from pasta_lm.strategies.model import Servers

ENVIRONMENT = {f"--{key}": f"PASTA_{key.upper()}" for key in ("model", "device", "dtype", "debug")}
"""The flags that environment variables set as well: what the machine decides, not the task."""
MODELS = "A model folder, an adapter folder, a GGUF file or a hub id."


def option(
    spelling: str, help: str, *, min: float | None = None,
    callback: Callable[..., object] | None = None,
) -> object:  # fmt: skip
    """Return the annotation that makes a parameter of a verb a flag.

    ``spelling`` has its names and, for the help, that of its value: ``--file -f FILE``.
    """
    parts = spelling.split()
    names = [part for part in parts if part.startswith("-")]
    return typer.Option(
        *names, envvar=ENVIRONMENT.get(names[0]), show_envvar=False, help=help,
        metavar=" ".join(part for part in parts if part not in names) or None, min=min,
        callback=callback,
    )  # fmt: skip


def set_threads(number: int | None) -> int | None:
    if number is not None:
        os.environ["OMP_NUM_THREADS"] = str(number)  # torch reads it once, when it is imported
    return number


Prompt = Annotated[
    str | None,
    typer.Argument(metavar="PROMPT", help="The prompt, above FILE; else standard input is read."),
]
FILES = "Read the prompt, or what stands below it, from a file; fill takes several."
Files = Annotated[list[Path] | None, option("--file -f FILE", FILES)]
Recipe = Annotated[
    Path | None, typer.Argument(metavar="[RECIPE.toml]", help="Settings; flags change them.")
]
Set = Annotated[
    list[str] | None,
    option("--set KEY=VALUE", "Change a key of the recipe, such as train.steps=9; repeatable."),
]
Out = Annotated[Path, option("--out DIR", "The run's folder; a run in it is continued.")]
Offline = Annotated[bool, option("--offline", "Compute the report of a stored run again.")]
DryRun = Annotated[bool, option("--dry-run", "Print the plan and the amount of work, and stop.")]
Pairs = Annotated[Path | None, option("--write-pairs FILE", "Only write what judge.file lacks.")]
Limit = Annotated[int | None, option("--limit N", "Only the first N rows.", min=1)]
Strategies = Annotated[str | None, option("--strategies A,B", "Strategies, separated by commas.")]
Model = Annotated[str | None, option("--model -m MODEL", f"{MODELS} Default: the built-in model.")]
DTYPES = (
    "auto, float32, bfloat16, float16, or weights in int8 (CPU only). "
    "auto: bfloat16 where it is faster (pasta doctor says why), else float32."
)
Dtype = Annotated[str | None, option("--dtype DTYPE", DTYPES, callback=dtype_name)]
Device = Annotated[str | None, option("--device DEVICE", "cpu or cuda. Default: a GPU if present.")]
THREADS = "CPU threads. Default: the cores that are idle; one for torch where a pass has few rows."
Threads = Annotated[int | None, option("--threads N", THREADS, min=1, callback=set_threads)]
MaxTokens = Annotated[int, option("--max-tokens N", "Maximum tokens over all threads, with tags.")]
MaxThreads = Annotated[
    int | None, option("--max-threads N", "Maximum number of threads in one step. Default: all.")
]
Temperature = Annotated[
    float | None,
    option("--temperature T", "0 is greedy. Default: as generation_config.json says, else 0."),
]
TopP = Annotated[float | None, option("--top-p P", "Sample from the likeliest tokens up to P.")]
ForkBias = Annotated[
    float | None,
    option(
        "--fork-bias X", "Added to a promise's logit; below 0 forks less. Default: the model's."
    ),
]
Think = Annotated[
    bool | None,
    option("--think/--no-think", "Whether it thinks before an answer. Default: as the model does."),
]
RepetitionPenalty = Annotated[
    float | None,
    option(
        "--repetition-penalty X",
        "Above 1 repeats less. Default: as generation_config.json says for free text, else 1.",
    ),
]
PresencePenalty = Annotated[
    float | None, option("--presence-penalty X", "Taken from the logits of what the answer has.")
]
FrequencyPenalty = Annotated[
    float | None, option("--frequency-penalty X", "Taken from them for each time it has it.")
]
Seed = Annotated[int, option("--seed N", "Same seed and same command, same answer.")]
Engine = Annotated[
    str | None,
    option("--engine URL[,URL]", "Servers that hold the model: vLLM, SGLang, llama.cpp."),
]
Dialect = Annotated[
    str | None, option("--dialect NAME", "vllm, sglang or llama.cpp. Default: they are asked.")
]
AllowInexact = Annotated[bool, option("--allow-inexact", "Also a model trained otherwise.")]
Json = Annotated[bool, option("--json", "Print one JSON object.")]
Trace = Annotated[
    Path | None, option("--trace FILE", "Write the trace to this file; pasta view shows it.")
]


def require_one_of(flag: str, value: str | None, choices: Iterable[str]) -> None:
    names = list(choices)
    if value is not None and value not in names:
        raise UsageError(f"{flag} cannot be {value!r}", hint=f"one of {', '.join(names)}")


def require_engine(
    engine: str | None, dialect: str | None = None, *, allow_inexact: bool = False
) -> Servers | None:
    """Return the servers that flags name; refuse the companions of ``--engine`` without it."""
    if engine is not None:
        from pasta_lm.strategies.model import Servers

        return Servers(addresses=engine, dialect=dialect, allow_inexact=allow_inexact)
    if dialect is not None or allow_inexact:
        flag = "--dialect" if dialect is not None else "--allow-inexact"
        raise UsageError(f"{flag} is for --engine", hint="leave it out")
    return None
