"""The flags that several verbs share, and checks of their values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from pasta_lm.errors import UsageError
from pasta_lm.models.dtypes import dtype_name

ENVIRONMENT = {
    "--model": "PASTA_MODEL",
    "--device": "PASTA_DEVICE",
    "--dtype": "PASTA_DTYPE",
    "--debug": "PASTA_DEBUG",
}
"""The flags that environment variables set as well: what the machine decides, not the task."""
MODELS = "A model folder, an adapter folder, a GGUF file or a hub id."
MODEL, DECODING, SERVERS = "Model", "Decoding", "Stock servers"


def option(
    name: str,
    *more: str,
    help: str,
    metavar: str | None = None,
    min: float | None = None,
    panel: str | None = None,
    callback: Callable[..., object] | None = None,
) -> Any:
    """Return the annotation that makes a parameter of a verb a flag.

    Args:
        name: The flag.
        more: Other spellings.
        help: Its line in the help.
        metavar: The name of its value in the help.
        min: The smallest number allowed.
        panel: The heading under which the help lists it.
        callback: Returns the value that the verb gets.
    """
    return typer.Option(
        name,
        *more,
        envvar=ENVIRONMENT.get(name),
        show_envvar=False,
        help=help,
        metavar=metavar,
        min=min,
        rich_help_panel=panel,
        callback=callback,
    )


Recipe = Annotated[
    Path | None, typer.Argument(metavar="[RECIPE.toml]", help="Settings; flags change them.")
]
Out = Annotated[
    Path, option("--out", metavar="DIR", help="The run's folder; a run in it is continued.")
]
Offline = Annotated[bool, option("--offline", help="Compute the report of a stored run again.")]
Strategies = Annotated[
    str | None, option("--strategies", metavar="A,B", help="Strategies, separated by commas.")
]
Model = Annotated[
    str | None,
    option(
        "--model",
        "-m",
        metavar="MODEL",
        help=f"{MODELS} Default: the built-in model.",
        panel=MODEL,
    ),
]
Dtype = Annotated[
    str | None,
    option(
        "--dtype",
        metavar="DTYPE",
        help="auto, float32, bfloat16, float16 (or bf16, half), or weights in int8 (CPU) or float8 "
        "(GPU). auto: float32 on a CPU, otherwise as saved.",
        panel=MODEL,
        callback=dtype_name,
    ),
]
Device = Annotated[
    str | None,
    option(
        "--device",
        metavar="DEVICE",
        help="cpu or cuda. Default: a GPU if there is one.",
        panel=MODEL,
    ),
]
Draft = Annotated[
    str | None,
    option(
        "--draft",
        metavar="MODEL",
        help="The draft model of the strategy draft-model.",
        panel=MODEL,
    ),
]
MaxTokens = Annotated[
    int,
    option(
        "--max-tokens",
        metavar="N",
        help="Maximum number of tokens of all threads together, tags included.",
        panel=DECODING,
    ),
]
MaxThreads = Annotated[
    int | None,
    option(
        "--max-threads",
        metavar="N",
        help="Maximum number of threads in one step. Default: all.",
        panel=DECODING,
    ),
]
Temperature = Annotated[
    float, option("--temperature", metavar="T", help="0 is greedy decoding.", panel=DECODING)
]
Seed = Annotated[int, option("--seed", metavar="N", help="Same seed, same answer.", panel=DECODING)]
Positions = Annotated[
    str | None,
    option(
        "--positions",
        metavar="STRATEGY",
        help="Positions after a promise: predict, continue or rotate. Default: as the model was "
        "trained.",
        panel=DECODING,
    ),
]
Engine = Annotated[
    str | None,
    option(
        "--engine",
        metavar="URL[,URL]",
        help="Decode on servers that hold the model: vLLM, SGLang or llama.cpp's.",
        panel=SERVERS,
    ),
]
Dialect = Annotated[
    str | None,
    option(
        "--dialect",
        metavar="NAME",
        help="vllm, sglang or llama.cpp. Default: the servers are asked.",
        panel=SERVERS,
    ),
]
AllowInexact = Annotated[
    bool,
    option("--allow-inexact", help="Also a model that was trained otherwise.", panel=SERVERS),
]
CostLimit = Annotated[
    float | None,
    option(
        "--cost-limit",
        metavar="USD",
        min=0,
        help="Hard limit on the total cost in US dollars; the recipe must name prices.",
    ),
]
Json = Annotated[bool, option("--json", help="Print one JSON object.")]


def require_one_of(flag: str, value: str | None, choices: Iterable[str]) -> None:
    """Refuse a value that is not one of the choices, before anything slow happens.

    Raises:
        UsageError: its hint lists the choices.
    """
    names = list(choices)
    if value is not None and value not in names:
        raise UsageError(f"{flag} cannot be {value!r}", hint=f"one of {', '.join(names)}")


def require_draft(draft: str | None, strategy: str) -> None:
    """Refuse a draft model without its strategy, and the strategy without a draft model.

    Raises:
        UsageError: only one of the two was named.
    """
    if (draft is not None) is not strategy.endswith("draft-model"):
        hint = "name both, or neither"
        raise UsageError("--draft and the strategy draft-model go together", hint=hint)


def require_engine(engine: str | None, dialect: str | None, *, allow_inexact: bool) -> None:
    """Refuse the companions of ``--engine`` without it.

    Raises:
        UsageError: one was used.
    """
    for flag, is_used in (("--dialect", dialect is not None), ("--allow-inexact", allow_inexact)):
        if engine is None and is_used:
            raise UsageError(f"{flag} is for --engine", hint="leave it out")


def server_flags(
    engine: str | None, dialect: str | None, *, allow_inexact: bool
) -> dict[str, object]:
    """Return the keys of a recipe's table ``servers`` that flags set; see ``require_engine``."""
    require_engine(engine, dialect, allow_inexact=allow_inexact)
    return {
        "servers.addresses": engine,
        "servers.dialect": dialect,
        "servers.allow_inexact": allow_inexact or None,
    }


def require_served(model: str | None, **local: object) -> str:
    """Return the model that servers hold; refuse flags that are the servers' own.

    Args:
        model: The value of ``--model``.
        local: Values of flags of the local engine, by their names.

    Raises:
        UsageError: there is no model, or such a flag.
    """
    if model is None:
        raise UsageError("--engine needs --model", hint="name the folder that the servers serve")
    refused = [f"--{name}" for name, value in local.items() if value]
    if refused:
        raise UsageError(
            f"{', '.join(refused)} cannot be used with --engine",
            hint="the servers decide this when they start",
        )
    return model
