"""The command ``pasta``: the table of its verbs, and how errors are printed.

A verb is one function in a file of its own: its flags, then a few lines that call the package. The
file is imported when the verb is used, so ``pasta --help`` is instant, and may import at its top
whatever is installed without extras. What needs torch or another extra is imported inside the
verb's function, by one statement, from the one module that does the work: ``pasta VERB --help``
works without extras, and a module that is missing becomes a message that names the extra.

Verbs raise ``PastaError`` and return; only ``main`` prints errors and exits. It also silences the
libraries under a model, before any of them is imported.
"""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from io import TextIOWrapper
from typing import Annotated, Never, TextIO

import typer

from pasta_lm import __version__
from pasta_lm.cli import terminal
from pasta_lm.cli.extras import extra_of
from pasta_lm.cli.flags import option
from pasta_lm.cli.verbs import Verb, verb_group
from pasta_lm.errors import MissingExtraError, PastaError, UsageError

MAX_ERROR_LINES = 4
ROOM = "check the path, its rights and the free space"
HELP = """\
Run and train language models that mark the independent parts of their own answers.

The marked parts are decoded in parallel. The environment variables PASTA_MODEL, PASTA_DTYPE and
PASTA_DEVICE set --model, --dtype and --device of every command, and PASTA_DEBUG=1 sets --debug.
A flag on the command line wins."""

app = verb_group(
    "pasta",
    HELP,
    {
        "Use a model": (
            Verb("run", "Answer a prompt with a model."),
            Verb("chat", "Talk with a model in the terminal."),
            Verb("serve", "Serve a model to OpenAI clients, with a page."),
            Verb("play", "Watch several threads decode a written answer; needs no model."),
            Verb("view", "Show a trace: when each thread decoded and when it waited."),
        ),
        "Teach a model": (
            Verb("teach", "Teach a model on its own annotated answers: the whole way."),
            Verb("annotate", "Mark the independent parts of the answers of a data set."),
            Verb("train", "Finetune, or optimise preferences.", "pasta_lm.cli.train:app"),
            Verb("export", "Write a model for vLLM, SGLang or llama.cpp."),
        ),
        "Measure": (
            Verb("evaluate", "Measure quality and speed.", "pasta_lm.cli.app:evaluate"),
            Verb("bench", "Measure the speed of an engine."),
            Verb("replay", "Decode given answers sequentially and in parallel."),
        ),
        "Check": (
            Verb("check", "Check an annotated text, or repair it."),
            Verb("doctor", "Check the installation."),
        ),
    },
    completes=True,
)

EVALUATE = "pasta_lm.cli.evaluate"
evaluate = verb_group(
    "evaluate",
    "Measure quality and speed.",
    {
        "Benchmarks": (
            Verb(
                "alpaca",
                "Compare answers to AlpacaEval's instructions by a judge.",
                f"{EVALUATE}:alpaca",
            ),
            Verb(
                "instructions",
                "Answer instructions; report decisions, speedups and text.",
                f"{EVALUATE}:instructions",
            ),
            Verb(
                "ifeval",
                "Grade how far answers follow checkable instructions.",
                f"{EVALUATE}:ifeval",
            ),
        ),
        "Reports": (
            Verb("cost", "Measure the loss caused by hidden blocks.", f"{EVALUATE}:cost"),
            Verb(
                "lc-winrate",
                "Compute length-controlled win rates of stored judgements.",
                f"{EVALUATE}:lc_winrate",
            ),
            Verb("speed", "Compute the paper's table of speed.", f"{EVALUATE}:speed"),
        ),
    },
)


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
    """Take the flags that stand before a verb; ``main`` has removed --debug."""


def main(app: typer.Typer = app, name: str = "pasta") -> Never:
    """Run the command line that was typed, and exit."""
    arguments, is_debug = _find_debug(sys.argv[1:])
    match arguments:
        case ["help", *verb]:
            arguments = [*verb, "--help"]
        case ["version"]:
            arguments = ["--version"]
    _open_streams()
    terminal.silence_libraries()
    try:
        code = app(arguments, prog_name=name, standalone_mode=False)
        sys.stdout.flush()
    except Exception as error:
        if is_debug and not isinstance(error, typer.TyperException):
            raise
        code = _print_error(_known(error))
    sys.exit(code if isinstance(code, int) else 0)


def _find_debug(arguments: list[str]) -> tuple[list[str], bool]:
    """Remove ``--debug`` from the arguments: it is allowed before and after the verb."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    kept = [argument for argument in arguments[:end] if argument != "--debug"]
    from_environment = os.environ.get("PASTA_DEBUG", "").lower() not in ("", "0", "false", "no")
    return kept + arguments[end:], len(kept) < end or from_environment


def _open_streams() -> None:
    """Replace standard streams that are closed, and let no character fail to be printed."""
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY), encoding="utf-8")
    if sys.stdout is None:  # opened for reading: a verb without output works, other output fails
        sys.stdout = _null_stream(os.O_RDONLY)
    if sys.stderr is None:
        sys.stderr = _null_stream(os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _null_stream(flags: int) -> TextIO:
    return os.fdopen(os.open(os.devnull, flags), "w", encoding="utf-8")


def _known(error: Exception) -> PastaError:
    """Return an error with a message for the user."""
    if isinstance(error, PastaError):
        return error
    if isinstance(error, typer.TyperException):
        return _wrong_usage(error)
    if isinstance(error, ModuleNotFoundError):
        module = (error.name or "").partition(".")[0]
        if extra := extra_of(module):
            return MissingExtraError(f"this (module {module})", extra)
    if isinstance(error, OSError) and error.strerror:
        return _failed_file(error)
    first_line = str(error).strip().partition("\n")[0]
    if "(os error " in first_line:  # libraries in Rust: safetensors, tokenizers
        return PastaError(f"a file cannot be read or written: {first_line}", hint=ROOM)
    return PastaError(
        f"unexpected {type(error).__name__}: {first_line}",
        hint="this is a bug or a broken installation; --debug shows where it happened",
    )


def _wrong_usage(error: typer.TyperException) -> UsageError:
    """Return an error of the command line's parser with a hint."""
    message, _, suggestion = error.format_message().partition(" Did you mean ")
    message, _, options = message.partition(" (Possible options: ")
    names = suggestion.rstrip("?") or options.rstrip(")")
    context = getattr(error, "ctx", None)  # only usage errors have one
    hint = f"did you mean {names}?" if names else None
    if context is not None and hint is None:
        hint = f"{context.command_path} --help"
    return UsageError(message[:1].lower() + message[1:].rstrip("."), hint=hint)


def _failed_file(error: OSError) -> PastaError:
    reason = (error.strerror or "").lower()
    if error.filename is None and error.errno in (errno.EBADF, errno.ENOSPC, errno.EIO):
        sys.stdout = _null_stream(os.O_WRONLY)  # else the exit flushes it once more
        return PastaError(f"the output cannot be written: {reason}")
    place = error.filename or "a file"
    return PastaError(f"{place} cannot be read or written: {reason}", hint=ROOM)


def _print_error(error: PastaError) -> int:
    """Print an error in at most four lines, and return its exit code."""
    hint = [] if error.hint is None else [f"    hint: {error.hint}".partition("\n")[0]]
    lines = error.message.splitlines()[: MAX_ERROR_LINES - len(hint)] + hint
    with suppress(OSError):
        typer.echo("pasta: " + "\n".join(lines), err=True)
    return error.exit_code
