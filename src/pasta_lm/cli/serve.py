"""``pasta serve``: an OpenAI-compatible server for one model."""

from __future__ import annotations

import gc
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pasta_lm import __version__
from pasta_lm.cli import flags
from pasta_lm.cli.flags import option, require_engine, require_one_of
from pasta_lm.cli.run import load_model
from pasta_lm.cli.terminal import INTERRUPTED, read_text, say
from pasta_lm.errors import UsageError
from pasta_lm.models.names import BUILTIN, model_name
from pasta_lm.recipe import read_recipe
from pasta_lm.strategies.requests import STRATEGIES

if TYPE_CHECKING:
    from socket import socket

    from pasta_lm.serve.app import Server
    from pasta_lm.serve.backends import Backend
    from pasta_lm.serve.engine_loop import EngineLoop

MAX_PORT = 65535


def serve(
    source: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL|LIMITS.toml]", help="As --model, or a file of limits."),
    ] = None,
    model: flags.Model = None,
    host: Annotated[str, option("--host HOST", "The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, option("--port N", "The port; 0 takes a free one.", min=0)] = 8000,
    api_key: Annotated[
        str | None, option("--api-key KEY", "Clients send it; @FILE reads it.")
    ] = None,
    allow_unauthenticated: Annotated[
        bool, option("--allow-unauthenticated", "Let other machines in without a key.")
    ] = False,
    served_model_name: Annotated[
        str | None, option("--served-model-name NAME", "The model's name for clients.")
    ] = None,
    think: flags.Think = None, dtype: flags.Dtype = None, device: flags.Device = None,
    threads: flags.Threads = None, engine: flags.Engine = None, dialect: flags.Dialect = None,
    allow_inexact: flags.AllowInexact = False, changes: flags.Set = None,
) -> None:  # fmt: skip
    """Serve a model to OpenAI clients, with a page.

    With --engine, servers that hold the model decode, and this one has the API, page and limits.

    SIGTERM or Ctrl-C refuses new requests and finishes the running ones; a second signal ends at
    once. The log is on standard error: plain lines in a terminal, else JSON lines.
    """
    from pasta_lm.serve import ServeRecipe
    from pasta_lm.serve.app import Server, address_of, bind, create_app, write_log
    from pasta_lm.serve.backends import LocalBackend, ServedBackend
    from pasta_lm.serve.guard import check_exposure, is_loopback

    servers = require_engine(engine, dialect, allow_inexact=allow_inexact)
    if port > MAX_PORT:
        raise UsageError(f"--port is {port}", hint=f"a number from 0 to {MAX_PORT}")
    key = read_text(api_key[1:]).strip() if api_key and api_key.startswith("@") else api_key
    check_exposure(host, key, allows_everyone=allow_unauthenticated)
    limits = Path(source) if source is not None and source.endswith(".toml") else None
    if source is not None and limits is None:
        if model is not None:
            raise UsageError(f"two models: {source} and --model {model}", hint="give one of them")
        model = source
    recipe = read_recipe(limits, ServeRecipe, changes or ())
    require_one_of("strategy", recipe.strategy, STRATEGIES)
    with bind(host, port) as listener:
        loaded = load_model(
            model, servers, dtype=dtype, device=device, pool_tokens=recipe.pool_tokens,
            cache_memory=recipe.cache_memory, shares_prefixes=recipe.shares_prefixes,
        )  # fmt: skip
        kind = LocalBackend if servers is None else ServedBackend
        if think is not None:
            loaded.engine.loaded.vocabulary.thinks = think
        backend: Backend = kind(loaded, served_model_name or model_name(model or BUILTIN))
        app = create_app(
            backend, recipe, api_key=key, only_loopback=key is None and is_loopback(host),
            version=__version__,
        )  # fmt: skip
        write_log(sys.stderr)
        server = Server(app, lambda: _greet(backend, address_of(listener)))
        _run(server, listener, app.state.service.engine)


def _run(server: Server, listener: socket, engine: EngineLoop) -> None:
    if sys.stderr.isatty():
        logging.getLogger("uvicorn").setLevel(logging.WARNING)  # the greeting says as much
    gc.freeze()  # else each large body has all objects of the libraries looked through
    server.run([listener])
    gc.unfreeze()
    if server.force_exit:
        os._exit(INTERRUPTED)  # the engine may be in the middle of a step, and nobody waits for it
    if engine.has_hung:
        os._exit(0)  # a step hangs, and the end of the process would wait for it


def _greet(backend: Backend, address: str) -> None:
    if not sys.stderr.isatty():
        logging.getLogger("pasta_lm.serve.server").info("running on %s", address)
        return
    facts = ", ".join(f"{name} {value}" for name, value in backend.facts.items())
    say(f"serving {backend.name} ({facts})")
    for name, path in (("page", "/"), ("chat", "/chat.html"), ("API", "/v1")):
        say(f"{name:5}{address}{path}")
    say("Ctrl-C ends it")
