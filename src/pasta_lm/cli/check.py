"""Say what is wrong with an annotated text, where, and what to do; or repair it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pasta_lm.cli.flags import option, require_one_of

if TYPE_CHECKING:
    from pasta_lm.language.check import Diagnostic

INVALID = 3
FORMS = ("written", "main", "annotator")


def check(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="The text to check; - reads standard input.")
    ],
    form: Annotated[
        str,
        option("--form", metavar="FORM", help="written, main or annotator."),
    ] = "written",
    output: Annotated[
        str,
        option("--format", metavar="FORMAT", help="text or json."),
    ] = "text",
    fix: Annotated[bool, option("--fix", help="Print the repaired text instead.")] = False,
) -> None:
    """Check an annotated text, or repair it.

    Exits with 3 if the text breaks the grammar of PASTA-LANG; every fault has a code, a place and
    a hint. With --fix the repaired text goes to standard output, what was wrong to standard
    error, and the exit code is 0.
    """
    from pasta_lm.cli.reading import read_text
    from pasta_lm.errors import UsageError
    from pasta_lm.language import check as find_faults
    from pasta_lm.language import fix as repair

    require_one_of("--form", form, FORMS)
    require_one_of("--format", output, ("text", "json"))
    if fix and output == "json":
        raise UsageError("--fix prints a text, not JSON", hint="leave out one of the two flags")
    text = read_text(file)
    diagnostics = find_faults(text, form)
    is_valid = all(diagnostic.severity != "error" for diagnostic in diagnostics)
    if output == "json":
        typer.echo(_as_json(diagnostics, is_valid))
    else:
        _report(file, text, diagnostics, to_stderr=fix)
    if fix:
        typer.echo(repair(text, form), nl=False)
    elif not is_valid:
        raise typer.Exit(INVALID)


def _as_json(diagnostics: list[Diagnostic], is_valid: bool) -> str:
    import json

    fields = ("code", "severity", "line", "column", "message", "hint")
    rows = [{name: getattr(one, name) for name in fields} for one in diagnostics]
    return json.dumps({"valid": is_valid, "diagnostics": rows}, ensure_ascii=False)


def _report(file: str, text: str, diagnostics: list[Diagnostic], *, to_stderr: bool) -> None:
    from pasta_lm.language import render

    for diagnostic in diagnostics:
        typer.echo(f"{file}: {render(diagnostic, text)}", err=to_stderr)
    if not diagnostics and not to_stderr:
        typer.echo(f"{file}: valid")
