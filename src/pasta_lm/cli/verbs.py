"""Groups of verbs: listed under headings, imported when they are used, flags in panels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

if TYPE_CHECKING:
    from typer._click import Context, HelpFormatter

Command = TyperCommand | TyperGroup
CONTEXT = {"help_option_names": ["-h", "--help"]}


class Verb(NamedTuple):
    """A verb of the command line."""

    name: str
    help: str
    """Its line in the list of verbs; the function's docstring is its own help."""
    place: str = "pasta_lm.cli.{name}:{name}"
    """``module:function``; a ``typer.Typer`` there is a group of verbs."""


Sections = Mapping[str, tuple[Verb, ...]]
"""Verbs by the heading under which they are listed."""


def verb_group(name: str, help: str, sections: Sections, *, completes: bool = False) -> typer.Typer:
    """Return a group whose verbs are imported when they are used.

    Args:
        name: The name of the group.
        help: The text above the list of verbs.
        sections: The verbs.
        completes: Whether it has the flags that install shell completion.
    """
    group = typer.Typer(
        name=name,
        cls=type("Verbs", (VerbGroup,), {"sections": sections}),
        help=help,
        add_completion=completes,
        context_settings=CONTEXT,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    group.callback()(lambda: None)
    return group


class VerbGroup(TyperGroup):
    """A group that lists its verbs without importing them."""

    sections: Sections = {}

    def list_commands(self, ctx: Context) -> list[str]:
        """Return the names of the verbs."""
        return [verb.name for verbs in self.sections.values() for verb in verbs]

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        """Import a verb; None if there is none of this name."""
        for verb in (verb for verbs in self.sections.values() for verb in verbs):
            if verb.name == cmd_name:
                return _command(verb)
        return None

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Print the help where no verb was typed."""
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help(), err=True)
            raise typer.Exit(2)
        self.commands = dict.fromkeys(self.list_commands(ctx), self)  # for suggestions, by name
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the verbs under their headings."""
        width = max(map(len, self.list_commands(ctx)))
        for heading, verbs in self.sections.items():
            with formatter.section(heading):
                formatter.write_dl([(verb.name.ljust(width), verb.help) for verb in verbs])


def _command(verb: Verb) -> Command:
    module, _, attribute = verb.place.format(name=verb.name).partition(":")
    function = getattr(import_module(module), attribute)
    if not isinstance(function, typer.Typer):
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        alone.command(verb.name, cls=VerbCommand)(function)
        function = alone
    command = get_command(function)
    assert isinstance(command, TyperCommand | TyperGroup)
    return command


class VerbCommand(TyperCommand):
    """A verb whose flags are listed by panel (``option(…, panel="Sampling")``)."""

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write arguments and flags, each panel under its heading."""
        panels = defaultdict[str, list[tuple[str, str]]](list)
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            default = "Arguments" if param.param_type_name == "argument" else "Options"
            if record is not None:
                panels[getattr(param, "rich_help_panel", None) or default].append(record)
        last = panels.pop("Options", [])  # with --help
        for heading, records in (*panels.items(), ("Options", last)):
            with formatter.section(heading):
                formatter.write_dl(records)
