"""The command ``pasta``: its verbs, and how errors are printed.

Only typer is imported here, so that ``pasta --help`` answers at once. A verb imports what it needs
when it runs.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Never

import typer

from pasta_lm import __version__
from pasta_lm.cli import (
    alpaca,
    annotate,
    answer,
    bench,
    chat,
    check,
    doctor,
    evaluate,
    export,
    instructions,
    play,
    replay,
    run,
    serve,
    speed,
    teach,
    train,
    view,
)
from pasta_lm.cli.flags import option
from pasta_lm.cli.tables import translate
from pasta_lm.errors import MissingExtraError, PastaError

MAX_ERROR_LINES = 4
MODULES = {"scikit-learn": "sklearn"}
EXTRA_OF = {
    MODULES.get(package, package.replace("-", "_")): extra
    for extra, packages in reversed(doctor.EXTRAS.items())
    for package in packages
}
"""The first extra that installs a module."""

app = typer.Typer(
    name="pasta",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command()(run.run)
app.command()(chat.chat)
app.command()(play.play)
app.command()(check.check)
app.command()(replay.replay)
app.command()(serve.serve)
app.command()(view.view)
app.command()(teach.teach)
app.add_typer(train.app, name="train")
app.command()(export.export)
app.command()(answer.answer)
app.command()(annotate.annotate)
evaluate.app.command("lc-winrate")(alpaca.lc_winrate)
evaluate.app.command()(speed.speed)
evaluate.app.command()(alpaca.alpaca)
evaluate.app.command()(instructions.cost)
evaluate.app.command()(instructions.instructions)
evaluate.app.command()(instructions.ifeval)
app.add_typer(evaluate.app, name="evaluate")
app.add_typer(bench.app, name="bench")
app.command()(doctor.doctor)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pasta-lm {__version__}")
        raise typer.Exit()


@app.callback()
def pasta(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and stop."
        ),
    ] = False,
    debug: Annotated[
        bool,
        option("--debug", help="Show the traceback of an error; also allowed after a command."),
    ] = False,
) -> None:
    """Run and train language models that mark the independent parts of their own answers.

    The marked parts are decoded in parallel. The environment variables PASTA_MODEL, PASTA_DTYPE and
    PASTA_DEVICE set --model, --dtype and --device of every command, and PASTA_DEBUG=1 sets --debug.
    A flag on the command line wins.
    """


def main(app: typer.Typer = app, name: str = "pasta") -> None:
    """Run the command line that was typed."""
    arguments, is_debug = _find_debug(sys.argv[1:])
    arguments, hints = translate(arguments)
    for hint in hints:
        typer.echo(f"pasta: {hint}", err=True)
    try:
        app(arguments, prog_name=name)
    except Exception as error:
        if is_debug:
            raise
        _fail(_known(error))


def _find_debug(arguments: list[str]) -> tuple[list[str], bool]:
    """Remove ``--debug`` from the arguments: it is allowed before and after the verb."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    kept = [argument for argument in arguments[:end] if argument != "--debug"]
    from_environment = os.environ.get("PASTA_DEBUG", "").lower() not in ("", "0", "false", "no")
    return kept + arguments[end:], len(kept) < end or from_environment


def _known(error: Exception) -> PastaError:
    """Return an error with a message for the user."""
    if isinstance(error, PastaError):
        return error
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        if package in EXTRA_OF:
            return MissingExtraError(f"this (module {package})", EXTRA_OF[package])
    first_line = str(error).strip().partition("\n")[0]
    return PastaError(
        f"unexpected {type(error).__name__}: {first_line}",
        hint="this is a bug or a broken installation; --debug shows where it happened",
    )


def _fail(error: PastaError) -> Never:
    hint = [] if error.hint is None else [f"    hint: {error.hint}".partition("\n")[0]]
    lines = error.message.splitlines()[: MAX_ERROR_LINES - len(hint)] + hint
    typer.echo("pasta: " + "\n".join(lines), err=True)
    sys.exit(error.exit_code)
