"""``pasta check``: find the errors of an annotated text, or repair them."""

from __future__ import annotations

from typing import Annotated

import typer

from pasta_lm.cli.flags import option, require_one_of
from pasta_lm.cli.terminal import INVALID, print_json, read_text
from pasta_lm.errors import UsageError
from pasta_lm.language import check as find_errors
from pasta_lm.language import fix as repair
from pasta_lm.language import render

FORMS = ("written", "main", "annotator")


def check(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The text; - for standard input.")],
    form: Annotated[str, option("--form FORM", "written, main or annotator.")] = "written",
    output: Annotated[str, option("--format FORMAT", "Form of the report: text or json.")] = "text",
    fix: Annotated[bool, option("--fix", "Print the repaired text.")] = False,
) -> None:
    """Check an annotated text, or repair it.

    Every error has a code, a position and a hint. The exit code is 3 if the text breaks the
    grammar of PASTA-LANG. With --fix the repaired text is printed on standard output and the
    errors on standard error, and the exit code is 0.
    """
    require_one_of("--form", form, FORMS)
    require_one_of("--format", output, ("text", "json"))
    if fix and output == "json":
        raise UsageError("--fix prints a text, not JSON", hint="leave out one of the two flags")
    text = read_text(file)
    diagnostics = find_errors(text, form)
    is_valid = all(diagnostic.severity != "error" for diagnostic in diagnostics)
    if output == "json":
        rows = [diagnostic.to_row() for diagnostic in diagnostics]
        print_json({"valid": is_valid, "diagnostics": rows})
    else:
        for diagnostic in diagnostics:
            typer.echo(f"{file}: {render(diagnostic, text)}", err=fix)
        if not diagnostics and not fix:
            typer.echo(f"{file}: valid")
    if fix:
        typer.echo(repair(text, form), nl=False)
    elif not is_valid:
        raise typer.Exit(INVALID)
