"""``pasta serve``: an OpenAI-compatible server for one model."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pasta_lm.cli.flags import (
    AllowInexact,
    Device,
    Dialect,
    Dtype,
    Engine,
    Model,
    Set,
    option,
    require_engine,
    require_one_of,
    require_served,
)
from pasta_lm.cli.terminal import INTERRUPTED, read_text, say, silence_libraries, status
from pasta_lm.errors import UsageError

if TYPE_CHECKING:
    from pasta_lm.serve.backends import Backend, LocalBackend
    from pasta_lm.serve.settings import ServeRecipe

MAX_PORT = 65535


def serve(
    source: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL|LIMITS.toml]", help="As --model, or a file of limits."),
    ] = None,
    model: Model = None,
    host: Annotated[str, option("--host HOST", "The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, option("--port N", "The port; 0 takes a free one.", min=0)] = 8000,
    api_key: Annotated[
        str | None,
        option("--api-key KEY", "Clients must send this key. @FILE reads it from a file."),
    ] = None,
    allow_unauthenticated: Annotated[
        bool, option("--allow-unauthenticated", "Let other machines in without a key.")
    ] = False,
    served_model_name: Annotated[
        str | None, option("--served-model-name NAME", "The model's name for clients.")
    ] = None,
    log_prompts: Annotated[bool, option("--log-prompts", "Write prompts into the log.")] = False,
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
    from pasta_lm.recipe import read_recipe
    from pasta_lm.serve.app import create_app
    from pasta_lm.serve.served import served_backend
    from pasta_lm.serve.server import address_of, bind, log_as_json, make_server
    from pasta_lm.serve.settings import ServeRecipe, check_exposure, is_loopback
    from pasta_lm.strategies.requests import STRATEGIES

    require_engine(engine, dialect, allow_inexact=allow_inexact)
    key = _read_key(api_key)
    check_exposure(host, key, allows_everyone=allow_unauthenticated)
    limits, model = _limits_or_model(source, model)
    recipe = read_recipe(limits, ServeRecipe, changes or ())
    require_one_of("strategy", recipe.strategy, STRATEGIES)
    if port > MAX_PORT:
        raise UsageError(f"--port is {port}", hint=f"a number from 0 to {MAX_PORT}")
    place = bind(host, port)
    silence_libraries()
    backend: Backend
    if engine is None:
        with status("loading the model"):
            backend = _local(model, dtype, device, recipe, served_model_name)
    else:
        held = require_served(model, dtype=dtype, device=device)
        name = served_model_name or held
        backend = served_backend(engine, held, name, dialect=dialect, allow_inexact=allow_inexact)
    app = create_app(
        backend,
        recipe,
        api_key=key,
        only_loopback=key is None and is_loopback(host),
        logs_prompts=log_prompts,
        version=__version__,
    )
    log_as_json()
    server = make_server(app, lambda: _greet(backend, address_of(place)))
    server.run([place])
    if server.force_exit:
        os._exit(INTERRUPTED)  # the engine may be in the middle of a step, and nobody waits for it
    if app.state.service.engine.has_hung:
        os._exit(0)  # a step hangs, and the end of the process would wait for it


def _limits_or_model(source: str | None, model: str | None) -> tuple[Path | None, str | None]:
    if source is not None and source.endswith(".toml"):
        return Path(source), model
    if source is not None and model is not None:
        raise UsageError(f"two models: {source} and --model {model}", hint="give one of them")
    return None, source or model


def _local(
    model: str | None, dtype: str | None, device: str | None, recipe: ServeRecipe, name: str | None
) -> LocalBackend:
    """Load a model into the local engine."""
    from pasta_lm.models.names import BUILTIN
    from pasta_lm.serve.backends import LocalBackend
    from pasta_lm.strategies.model import Pasta

    loaded = Pasta.from_pretrained(
        model or BUILTIN,
        dtype=dtype,
        device=device,
        pool_tokens=recipe.pool_tokens,
        cache_memory=recipe.cache_memory,
        shares_prefixes=recipe.shares_prefixes,
    )
    return LocalBackend(loaded, name or str(model or BUILTIN))


def _greet(backend: Backend, address: str) -> None:
    """Tell the addresses: in a terminal as text, otherwise as a line of the log."""
    if not sys.stderr.isatty():
        logging.getLogger("pasta_lm.serve.server").info("running on %s", address)
        return
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    facts = ", ".join(f"{name} {value}" for name, value in backend.facts.items())
    say(f"serving {backend.name} ({facts})")
    for name, path in (("page", "/"), ("chat", "/chat.html"), ("API", "/v1")):
        say(f"{name:5}{address}{path}")
    say("Ctrl-C ends it")


def _read_key(key: str | None) -> str | None:
    """Return the key, read from a file if it is named so."""
    return read_text(key[1:]).strip() if key is not None and key.startswith("@") else key
