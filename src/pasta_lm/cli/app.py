"""The command ``pasta``: the table of its verbs, and how errors are printed.

A verb is one function; its file is imported when the verb is used, so ``pasta --help`` is instant.
What needs torch or another extra is imported inside the function: ``pasta VERB --help`` works
without extras, and a missing module becomes a message that names the extra. Verbs raise
``PastaError`` and return; only ``main`` prints errors and exits.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module, metadata
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Never, TextIO, cast

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from pasta_lm import __version__
from pasta_lm.cli import terminal
from pasta_lm.cli.flags import option
from pasta_lm.errors import DeviceMemoryError, MissingExtraError, PastaError, UsageError

if TYPE_CHECKING:
    from typer._click import Context, HelpFormatter

MAX_ERROR_LINES = 4
OUTPUT_ERRORS = (errno.EBADF, errno.ENOSPC, errno.EIO)
ROOM = "check the path, its rights and the free space"
HELP = """\
Run and train language models that mark the independent parts of their own answers.

The marked parts are decoded in parallel. The environment variables PASTA_MODEL, PASTA_DTYPE and
PASTA_DEVICE set --model, --dtype and --device of every command, and PASTA_DEBUG=1 sets --debug.
A flag on the command line wins."""
Sections = Mapping[str, str]  # names of verbs by heading
VERBS: Sections = {
    "Use a model": "demo run fill ask chat serve play view",
    "Teach a model": "teach annotate train export",
    "Measure": "evaluate bench replay",
    "Check": "check doctor",
}
TRAIN: Sections = {"Stages": "sft preference"}
EVALUATE: Sections = {
    "Benchmarks": "alpaca instructions ifeval",
    "Reports": "cost lc-winrate speed",
}
MODULES = {"scikit-learn": "sklearn"}  # module names that differ from the package's
REQUIREMENT = re.compile(r"""^([\w.-]+).*extra == ['"](\w+)['"]""")


class VerbGroup(TyperGroup):
    """A group that lists its verbs under headings, and imports a verb when it is used."""

    sections: Sections

    def list_commands(self, ctx: Context) -> list[str]:
        return [name for verbs in self.sections.values() for name in verbs.split()]

    def get_command(self, ctx: Context, cmd_name: str) -> TyperCommand | TyperGroup | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        if (verb := GROUPS.get(cmd_name)) is None:
            verb = typer.Typer(add_completion=False, rich_markup_mode=None)
            module = import_module(f"pasta_lm.cli.{_source_of(cmd_name)[0]}")
            verb.command()(getattr(module, cmd_name.replace("-", "_")))
        return cast("TyperCommand | TyperGroup", get_command(verb))

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help(), err=True)
            raise typer.Exit(2)
        self.commands = dict.fromkeys(self.list_commands(ctx), self)  # for suggestions, by name
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        width = max(map(len, self.list_commands(ctx)))
        for heading, verbs in self.sections.items():
            with formatter.section(heading):
                rows = [(name.ljust(width), _summary(name)) for name in verbs.split()]
                formatter.write_dl(rows)


def _source_of(verb: str) -> tuple[str, str]:
    """Return the name of the file that defines a verb, and its text from there: no import."""
    start = f"\ndef {verb.replace('-', '_')}(\n"
    for file in sorted(Path(__file__).parent.glob("*.py")):
        _, start_of, text = file.read_text("utf-8").partition(start)
        if start_of:
            return file.stem, text
    raise LookupError(verb)


def _summary(verb: str) -> str:
    if verb in GROUPS:
        return str(GROUPS[verb].info.help)
    return _source_of(verb)[1].split('"""', 2)[1].partition("\n")[0]


def _group(name: str, help: str, sections: Sections) -> typer.Typer:
    group = typer.Typer(
        name=name, cls=type("Verbs", (VerbGroup,), {"sections": sections}), help=help,
        add_completion=name == "pasta", context_settings={"help_option_names": ["-h", "--help"]},
        rich_markup_mode=None, pretty_exceptions_enable=False,
    )  # fmt: skip
    group.callback()(lambda: None)
    return group


app = _group("pasta", HELP, VERBS)
GROUPS = {
    "train": _group("train", "Train a model to write PASTA-LANG.", TRAIN),
    "evaluate": _group("evaluate", "Measure quality and speed.", EVALUATE),
}


def _print_version(is_set: bool) -> None:
    if is_set:
        typer.echo(f"pasta-lm {__version__}")
        raise typer.Exit()


@app.callback()
def pasta(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
    debug: Annotated[
        bool, option("--debug", "Show the traceback of an error; also allowed after a command.")
    ] = False,
) -> None:
    """Take the flags that stand before a verb; ``main`` has removed --debug."""


def main(app: typer.Typer = app, name: str = "pasta") -> Never:
    arguments, is_debug = _find_debug(sys.argv[1:])
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    elif arguments == ["version"]:
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
    # Standard streams may be closed, and no character may fail to be printed.
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY), encoding="utf-8")
    # Opened for reading: a verb without output works, other output fails.
    sys.stdout = sys.stdout or _null_stream(os.O_RDONLY)
    sys.stderr = sys.stderr or _null_stream(os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _null_stream(flags: int) -> TextIO:
    return os.fdopen(os.open(os.devnull, flags), "w", encoding="utf-8")


def _known(error: Exception) -> PastaError:
    match error:
        case PastaError():
            return error
        case typer.TyperException():
            return _wrong_usage(error)
        case ModuleNotFoundError(name=str(name)) if extra := _extra_of(name.partition(".")[0]):
            return MissingExtraError(f"this (module {name.partition('.')[0]})", extra)
        case OSError(strerror=str(reason), filename=None) if error.errno in OUTPUT_ERRORS:
            sys.stdout = _null_stream(os.O_WRONLY)  # else the exit flushes it once more
            return PastaError(f"the output cannot be written: {reason.lower()}")
        case OSError(strerror=str(reason)):
            name = error.filename or "a file"
            return PastaError(f"{name} cannot be read or written: {reason.lower()}", hint=ROOM)
        case RuntimeError() if type(error).__name__ == "OutOfMemoryError":  # torch's
            return DeviceMemoryError(error)
    first_line = str(error).strip().partition("\n")[0]
    if "(os error " in first_line:  # libraries in Rust: safetensors, tokenizers
        return PastaError(f"a file cannot be read or written: {first_line}", hint=ROOM)
    hint = "this is a bug or a broken installation; --debug shows where it happened"
    return PastaError(f"unexpected {type(error).__name__}: {first_line}", hint=hint)


def _wrong_usage(error: typer.TyperException) -> UsageError:
    message, _, suggestion = error.format_message().partition(" Did you mean ")
    message, _, options = message.partition(" (Possible options: ")
    context = getattr(error, "ctx", None)  # only usage errors have one
    hint = None if context is None else f"{context.command_path} --help"
    if names := suggestion.rstrip("?") or options.rstrip(")"):
        hint = f"did you mean {names}?"
    return UsageError(message[:1].lower() + message[1:].rstrip("."), hint=hint)


def _print_error(error: PastaError) -> int:
    hint = [] if error.hint is None else [f"    hint: {error.hint}".partition("\n")[0]]
    lines = error.message.splitlines()[: MAX_ERROR_LINES - len(hint)] + hint
    with suppress(OSError):
        typer.echo("pasta: " + "\n".join(lines), err=True)
    return error.exit_code


@cache
def packages_by_extra() -> dict[str, list[str]]:
    """Return the packages of each extra by the package's metadata, the smallest extra first."""
    packages: dict[str, list[str]] = {}
    with suppress(metadata.PackageNotFoundError):  # run from a folder, not installed
        for match in map(REQUIREMENT.match, metadata.requires("pasta-lm") or []):
            if match and match[1] != "pasta-lm" and match[2] != "dev":
                packages.setdefault(match[2], []).append(match[1])
    return dict(sorted(packages.items(), key=lambda extra: len(extra[1])))


def _extra_of(module: str) -> str | None:
    for extra, packages in packages_by_extra().items():
        if module in (MODULES.get(name, name.replace("-", "_")) for name in packages):
            return extra
    return None
