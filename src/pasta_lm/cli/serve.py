"""``pasta serve``: an OpenAI-compatible server for one model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pasta_lm.cli.evaluate import Set
from pasta_lm.cli.exit_codes import INTERRUPTED
from pasta_lm.cli.flags import (
    AllowInexact,
    Device,
    Dialect,
    Dtype,
    Engine,
    Model,
    option,
    require_engine,
    require_one_of,
    require_served,
)

if TYPE_CHECKING:
    from pasta_lm.serve.backends import Backend
    from pasta_lm.serve.settings import ServeRecipe


def serve(
    recipe: Annotated[
        Path | None, typer.Argument(metavar="[RECIPE.toml]", help="Limits; --set changes them.")
    ] = None,
    model: Model = None,
    host: Annotated[
        str, option("--host", metavar="HOST", help="The address to listen on.")
    ] = "127.0.0.1",
    port: Annotated[
        int, option("--port", metavar="N", min=0, help="The port; 0 takes a free one.")
    ] = 8000,
    api_key: Annotated[
        str | None,
        option(
            "--api-key",
            metavar="KEY",
            help="Clients must send this key. @FILE reads it from a file.",
        ),
    ] = None,
    allow_unauthenticated: Annotated[
        bool,
        option("--allow-unauthenticated", help="Let other machines in without a key."),
    ] = False,
    strategy: Annotated[
        str | None,
        option("--strategy", metavar="NAME", help="The strategy of requests that name none."),
    ] = None,
    log_prompts: Annotated[
        bool, option("--log-prompts", help="Write prompts into the log.")
    ] = False,
    dtype: Dtype = None,
    device: Device = None,
    engine: Engine = None,
    dialect: Dialect = None,
    allow_inexact: AllowInexact = False,
    changes: Set = None,
) -> None:
    """Serve a model to OpenAI clients.

    With --engine, servers that hold the model decode, and this one has the API, page and limits.

    SIGTERM or Ctrl-C refuses new requests and finishes the running ones; a second signal ends at
    once. The log is JSON lines on standard error.
    """
    from pasta_lm import __version__
    from pasta_lm.cli.terminal import silence_libraries
    from pasta_lm.recipe import read_recipe
    from pasta_lm.serve.app import create_app
    from pasta_lm.serve.served import served_backend
    from pasta_lm.serve.server import log_as_json, make_server
    from pasta_lm.serve.settings import ServeRecipe, check_exposure, is_loopback
    from pasta_lm.strategies.requests import STRATEGIES

    require_engine(engine, dialect, allow_inexact=allow_inexact)
    key = _read_key(api_key)
    check_exposure(host, key, allows_everyone=allow_unauthenticated)
    named = [] if strategy is None else [f"strategy={strategy}"]
    found = read_recipe(recipe, ServeRecipe, [*(changes or []), *named])
    require_one_of("--strategy", found.strategy, STRATEGIES)
    silence_libraries()
    if engine is None:
        backend = _local(model, dtype, device, found)
    else:
        source = require_served(model, dtype=dtype, device=device)
        backend = served_backend(engine, source, dialect=dialect, allow_inexact=allow_inexact)
    app = create_app(
        backend,
        found,
        api_key=key,
        only_loopback=key is None and is_loopback(host),
        logs_prompts=log_prompts,
        version=__version__,
    )
    log_as_json()
    server = make_server(app, host=host, port=port)
    server.run()
    if server.force_exit:
        os._exit(INTERRUPTED)  # the engine may be in the middle of a step, and nobody waits for it
    if app.state.service.engine.is_running:
        os._exit(0)  # a step hangs, and the end of the process would wait for it


def _local(
    model: str | None, dtype: str | None, device: str | None, recipe: ServeRecipe
) -> Backend:
    """Load a model into the local engine."""
    from pasta_lm.models.shipped import BUILTIN
    from pasta_lm.serve.backends import TorchBackend
    from pasta_lm.strategies.model import Pasta

    loaded = Pasta.from_pretrained(
        model or BUILTIN,
        dtype=dtype,
        device=device,
        pool_tokens=recipe.pool_tokens,
        cache_memory=recipe.cache_memory,
        shares_prefixes=recipe.shares_prefixes,
    )
    return TorchBackend(loaded, str(model or BUILTIN))


def _read_key(given: str | None) -> str | None:
    """Return the key, read from a file if it is named so."""
    from pasta_lm.cli.terminal import read_text

    if given is None or not given.startswith("@"):
        return given
    return read_text(given[1:]).strip()
