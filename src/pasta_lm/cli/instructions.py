"""Evaluate instructions: a taught model and its sequential baseline on people's prompts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pasta_lm.cli.cost import Baseline, print_cost, reading_systems
from pasta_lm.cli.evaluate import Set, read_settings
from pasta_lm.cli.exit_codes import INTERRUPTED
from pasta_lm.cli.flags import Json, Model, option
from pasta_lm.cli.tables import interval, number, print_json, print_table
from pasta_lm.cli.terminal import bars, silence_libraries, write_text

if TYPE_CHECKING:
    from pasta_lm.evaluate.instructions import InstructionRun, InstructionSettings

SIDES = ("pasta", "sequential", "difference")
SPEEDS = (
    ("theoretical", "theoretical_speedup"),
    ("parallelism", "parallelism"),
    ("forks", "forks"),
    ("length ratio", "length_ratio"),
)
Out = Annotated[
    Path, option("--out", metavar="DIR", help="The run's folder; a run in it is continued.")
]
Offline = Annotated[bool, option("--offline", help="Compute the report of a stored run again.")]
Page = Annotated[
    Path | None,
    option("--page", metavar="OUT.html", help="Write the answers side by side, to be read."),
]


def instructions(
    out: Out,
    recipe: Annotated[
        Path | None, typer.Argument(metavar="[RECIPE.toml]", help="Settings; flags change them.")
    ] = None,
    model: Model = None,
    baseline: Baseline = None,
    limit: Annotated[
        int | None, option("--limit", metavar="N", min=1, help="The first N prompts of each set.")
    ] = None,
    offline: Offline = False,
    page: Page = None,
    changes: Set = None,
    as_json: Json = False,
) -> None:
    """Compare a taught model with its baseline on instructions.

    Answers AlpacaEval's and IFEval's prompts (sets.alpaca, sets.ifeval) and held-out prompts of the
    corpora; measures speed, structure, text, IFEval's checks and the cost of not seeing. A stopped
    run is continued; records hold ids and answers, no prompts.
    """
    from pasta_lm.evaluate.instructions import InstructionSettings, open_run
    from pasta_lm.evaluate.instructions_report import instructions_report

    silence_libraries()
    if offline:
        run = open_run(out)
    else:
        flags = {"model": model, "baseline": baseline, "limit": limit}
        run = _run(out, read_settings(InstructionSettings, recipe, flags, changes))
    report = instructions_report(run)
    _write(run, report, page)
    if as_json:
        print_json(report)
    else:
        _print(report, out)


def ifeval(
    prompts: Annotated[Path, option("--prompts", metavar="FILE", help="IFEval's prompts.")],
    out: Out,
    model: Model = None,
    baseline: Baseline = None,
    limit: Annotated[
        int | None, option("--limit", metavar="N", min=1, help="The first N prompts.")
    ] = None,
    changes: Set = None,
    as_json: Json = False,
) -> None:
    """Check which of IFEval's instructions models follow.

    The same as `instructions` with this set alone.
    """
    from pasta_lm.evaluate.instructions import InstructionSettings
    from pasta_lm.evaluate.instructions_report import instructions_report

    silence_libraries()
    flags = {"model": model, "baseline": baseline, "limit": limit}
    own = [f"sets.ifeval={json.dumps(str(prompts))}", "num_timed=0", "num_unmasked=0"]
    settings = read_settings(InstructionSettings, None, flags, [*own, *(changes or [])])
    run = _run(out, settings)
    report = instructions_report(run)
    _write(run, report, None)
    if as_json:
        print_json(report)
    else:
        _print(report, out)


def _run(out: Path, settings: InstructionSettings) -> InstructionRun:
    """Answer, check and read what is missing; write the gzipped records."""
    from pasta_lm.evaluate.instructions import begin_run, check_answers, pack

    run = begin_run(out, settings)
    try:
        if not run.is_answered:
            _answer(run)
        check_answers(run)
        _read_references(run)
        _read(run)
    except KeyboardInterrupt:
        typer.echo("pasta: interrupted; the same command continues the run", err=True)
        raise typer.Exit(INTERRUPTED) from None
    pack(run)
    return run


def _answer(run: InstructionRun) -> None:
    from pasta_lm import __version__
    from pasta_lm.evaluate.instructions import answer_prompts
    from pasta_lm.evaluate.records import provenance
    from pasta_lm.strategies.model import Pasta

    settings = run.settings
    load = partial(
        Pasta.from_pretrained,
        dtype=settings.dtype,
        device=settings.device,
        pool_tokens=settings.pool_tokens,
    )
    models = {name: load(name) for name in dict.fromkeys(one.model for one in settings.systems)}
    made = {name: provenance(one, __version__) for name, one in models.items()}
    with bars() as progress:
        answer_prompts(run, models, progress, made)


def _read_references(run: InstructionRun) -> None:
    """Read the reference answers with all models, unless they have been read."""
    from pasta_lm.evaluate.cost import measure
    from pasta_lm.evaluate.instructions import REFERENCES, references_of
    from pasta_lm.journal import write_rows

    settings = run.settings
    given = references_of(settings)
    if not given or run.rows(REFERENCES):
        return
    baseline, taught = settings.systems
    names = {"taught": taught.model, "baseline": baseline.model, "untaught": settings.untaught}
    first, *others = reading_systems(names, "float32", settings.device)
    write_rows(run.folder / f"{REFERENCES}.jsonl", list(measure(given, first, others)))


def _read(run: InstructionRun) -> None:
    """Let the reader read the answers, if one is named."""
    from pasta_lm.evaluate.cost import reading
    from pasta_lm.evaluate.instructions import read_answers, unread
    from pasta_lm.strategies.model import Pasta
    from pasta_lm.train.losses import token_nats

    settings = run.settings
    if settings.reader is None or not unread(run):
        return
    load = partial(Pasta.from_pretrained, dtype="float32", device=settings.device)
    loaded = load(settings.reader).engine.loaded
    nats = partial(token_nats, loaded)
    with bars() as progress:
        read_answers(run, reading(loaded.vocabulary, min(loaded.eos_ids), nats), progress)


def _write(run: InstructionRun, report: Mapping[str, Any], page: Path | None) -> None:
    """Write the report as JSON and Markdown, and pages of answers.

    The page in the folder has our own prompts alone; the other one has all that can be read.
    """
    from pasta_lm.evaluate.answers_page import side_by_side
    from pasta_lm.evaluate.pages import answers_page, instructions_page
    from pasta_lm.evaluate.prompt_sets import OWN

    write_text(run.folder / "report.json", json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    write_text(run.folder / "report.md", instructions_page(report))
    write_text(run.folder / "answers.html", answers_page(side_by_side(run, OWN)))
    if page is not None:
        write_text(page, answers_page(side_by_side(run)))


def _print(report: Mapping[str, Any], out: Path) -> None:
    rows: list[Sequence[str]] = []
    for name, figures in report["sets"].items():
        for label, part in ((name, figures), *((f"  {k}", v) for k, v in figures["parts"].items())):
            cells = [interval(part[key], 2) for _, key in SPEEDS]
            rows.append([label, str(part["num_prompts"]), *cells, number(part["well_formed"], 3)])
    print_table(["prompts", "n", *(title for title, _ in SPEEDS), "well formed"], rows)
    for name, figures in report["sets"].items():
        typer.echo()
        found = [
            [key, *(interval(one[side]) for side in SIDES)]
            for key, one in figures["text"].items()
            if one["pasta"] is not None
        ]
        checked = figures["ifeval"] or {}
        found += [
            [f"{key}, {reader}", *(interval(one[side]) for side in SIDES)]
            for reader, measures in figures["read_by"].items()
            for key, one in measures.items()
        ]
        ends = ("", "_baseline", "_difference")
        found += [
            [f"ifeval {key}", *(interval(checked[key + end]) for end in ends)]
            for key in ("prompt_strict", "prompt_loose", "instruction_strict", "instruction_loose")
            if checked
        ]
        print_table([name, "pasta", "sequential", "difference"], found)
    if report["references"]:
        typer.echo()
        names = {"taught": report["model"], "baseline": report["baseline"]}
        print_cost({**names, **report["references"]})
    typer.echo(
        f"\n{report['kind']}: {report['model']} against the sequential answers of "
        f"{report['baseline']}; greedy, at most {report['max_tokens']} tokens; 95 % intervals; "
        f"{out / 'report.md'} has all figures"
    )
