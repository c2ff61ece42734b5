"""Evaluate a taught model: on people's prompts, on IFEval's, and the cost of not seeing."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pasta_lm.cli.evaluate import Set, load_models, read_settings
from pasta_lm.cli.flags import (
    AllowInexact,
    Device,
    Dialect,
    Dtype,
    Engine,
    Json,
    Model,
    Offline,
    Out,
    Recipe,
    option,
    server_flags,
)
from pasta_lm.cli.tables import interval, number, print_figures, print_table
from pasta_lm.cli.terminal import bars, interruptible, silence_libraries, write_text

if TYPE_CHECKING:
    from pasta_lm.measure.cost import ReadingSystem
    from pasta_lm.measure.instructions import InstructionRun, InstructionSettings

SPEEDS = (
    ("theoretical", "theoretical_speedup"),
    ("parallelism", "parallelism"),
    ("forks", "forks"),
    ("length ratio", "length_ratio"),
)
COSTS = {
    "cost": "cost: pasta less the baseline",
    "cost_given_text": "  tags left out of the softmax",
    "cost_of_visibility": "pasta less the same model sequentially",
    "cost_of_training": "the taught model less the baseline, both sequential",
    "baseline_gain": "the baseline less the untaught model",
}
Baseline = Annotated[
    str | None, option("--baseline", metavar="DIR|HF_ID", help="The sequential baseline.")
]


def instructions(
    out: Out,
    recipe: Recipe = None,
    model: Model = None,
    baseline: Baseline = None,
    limit: Annotated[
        int | None, option("--limit", metavar="N", min=1, help="The first N prompts of each set.")
    ] = None,
    offline: Offline = False,
    page: Annotated[
        Path | None,
        option("--page", metavar="OUT.html", help="Write the answers side by side, to be read."),
    ] = None,
    engine: Engine = None,
    dialect: Dialect = None,
    allow_inexact: AllowInexact = False,
    changes: Set = None,
    as_json: Json = False,
) -> None:
    """Compare a taught model with its baseline on instructions.

    Answers AlpacaEval's and IFEval's prompts (sets.alpaca, sets.ifeval) and held-out prompts of the
    corpora; measures speed, structure, text, IFEval's checks and the cost of not seeing. A stopped
    run is continued; records hold ids and answers, no prompts.
    """
    from pasta_lm.measure.instructions import InstructionSettings, open_run

    silence_libraries()
    if offline:
        run = open_run(out)
    else:
        served = server_flags(engine, dialect, allow_inexact=allow_inexact)
        flags = {"model": model, "baseline": baseline, "limit": limit, **served}
        run = run_instructions(out, read_settings(InstructionSettings, recipe, flags, changes))
    _report(run, page, as_json=as_json)


def ifeval(
    prompts: Annotated[Path, option("--prompts", metavar="FILE", help="IFEval's prompts.")],
    out: Out,
    model: Model = None,
    baseline: Baseline = None,
    limit: Annotated[
        int | None, option("--limit", metavar="N", min=1, help="The first N prompts.")
    ] = None,
    engine: Engine = None,
    dialect: Dialect = None,
    allow_inexact: AllowInexact = False,
    changes: Set = None,
    as_json: Json = False,
) -> None:
    """Check which of IFEval's instructions models follow.

    The same as `instructions` with this set alone.
    """
    from pasta_lm.measure.instructions import InstructionSettings

    silence_libraries()
    served = server_flags(engine, dialect, allow_inexact=allow_inexact)
    flags = {"model": model, "baseline": baseline, "limit": limit, **served}
    own = [f"sets.ifeval={json.dumps(str(prompts))}", "num_timed=0", "num_unmasked=0"]
    settings = read_settings(InstructionSettings, None, flags, [*own, *(changes or [])])
    _report(run_instructions(out, settings), as_json=as_json)


def cost(
    references: Annotated[
        Path, typer.Argument(metavar="ANSWERS.jsonl", help="Annotated answers to read.")
    ],
    ids: Annotated[
        Path | None, option("--ids", metavar="FILE", help="Read only the rows that it lists.")
    ] = None,
    model: Model = None,
    baseline: Baseline = None,
    untaught: Annotated[
        str | None, option("--untaught", metavar="DIR|HF_ID", help="The model before any training.")
    ] = None,
    records: Annotated[
        Path | None, option("--records", metavar="FILE", help="Write a row for each answer here.")
    ] = None,
    dtype: Dtype = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Measure what not seeing other threads costs.

    Reads given answers with teacher forcing: the taught model under PASTA's visibility and
    sequentially, its sequential baseline, and the untaught model. Nats per token of the text,
    paired by answer.
    """
    from pasta_lm.journal import write_rows
    from pasta_lm.measure.cost import cost_report, measure, read_references
    from pasta_lm.models.shipped import BUILTIN
    from pasta_lm.strategies.model import baseline_of

    silence_libraries()
    given = read_references(references, ids)
    ours = model or BUILTIN
    names = {"taught": ours, "baseline": baseline or baseline_of(ours), "untaught": untaught}
    rows = list(measure(given, _reading_systems(names, dtype, device)))
    if records is not None:
        write_rows(records, rows)
    found = {"references": str(references), **names, **cost_report(rows)}
    print_figures(found, _print_cost, as_json=as_json)


def run_instructions(out: Path, settings: InstructionSettings) -> InstructionRun:
    """Answer, check and read what is missing; write the gzipped records."""
    from pasta_lm.measure.instructions import begin_run, check_answers, pack

    run = begin_run(out, settings)
    with interruptible():
        if not run.is_answered:
            _answer(run)
            gc.collect()  # frees both models
        check_answers(run)
        _read_references(run)
        _read(run)
    pack(run)
    return run


def _answer(run: InstructionRun) -> None:
    """Let both models answer."""
    from pasta_lm.measure.instructions import answer_prompts

    settings = run.settings
    models, made = load_models(
        settings.systems, settings.dtype, settings.device, settings.pool_tokens, settings.servers
    )
    with bars() as progress:
        answer_prompts(run, models, progress, made)


def _read_references(run: InstructionRun) -> None:
    """Read the reference answers with all models, unless they have been read."""
    from pasta_lm.journal import write_rows
    from pasta_lm.measure.cost import measure
    from pasta_lm.measure.instructions import REFERENCES, references_of

    settings = run.settings
    given = references_of(settings)
    if not given or run.rows(REFERENCES):
        return
    baseline, taught = settings.systems
    names = {"taught": taught.model, "baseline": baseline.model, "untaught": settings.untaught}
    systems = _reading_systems(names, "float32", settings.device)
    write_rows(run.folder / f"{REFERENCES}.jsonl", list(measure(given, systems)))


def _read(run: InstructionRun) -> None:
    """Let the reader read the answers, if one is named."""
    from pasta_lm.engines.local.loading import load
    from pasta_lm.learn.train.losses import token_nats
    from pasta_lm.measure.cost import reading
    from pasta_lm.measure.instructions import read_answers, unread

    settings = run.settings
    if settings.reader is None or not unread(run):
        return
    loaded = load(settings.reader, dtype="float32", device=settings.device)
    nats = partial(token_nats, loaded)
    with bars() as progress:
        read_answers(run, reading(loaded.vocabulary, min(loaded.eos_ids), nats), progress)


def _reading_systems(
    names: Mapping[str, str | None], dtype: str | None, device: str | None
) -> Iterator[ReadingSystem]:
    """Load the models that read, one after the other: first the taught one, for both its systems.

    Raises:
        ModelError: the taught model has no tag pieces.
    """
    from pasta_lm.engines.local.loading import load
    from pasta_lm.errors import ModelError
    from pasta_lm.learn.train.losses import token_nats
    from pasta_lm.measure.cost import BASELINE, PASTA, TAUGHT, UNTAUGHT, ReadingSystem
    from pasta_lm.strategies.requests import NO_TAG_PIECES

    reading = {"taught": (PASTA, TAUGHT), "baseline": (BASELINE,), "untaught": (UNTAUGHT,)}
    for key, systems in reading.items():
        if (name := names[key]) is None:
            continue
        loaded = load(name, dtype=dtype, device=device)
        if key == "taught" and not loaded.vocabulary.has_pieces:
            raise ModelError(f"{name}: {NO_TAG_PIECES}", hint="name a taught model: --model")
        facts = loaded.vocabulary, min(loaded.eos_ids), partial(token_nats, loaded)
        for system in systems:
            yield ReadingSystem(system, *facts, loaded.positions, loaded.join)
        del loaded, facts
        gc.collect()  # before the next one is loaded


def _report(run: InstructionRun, page: Path | None = None, *, as_json: bool) -> None:
    """Write the report, and print it."""
    print_figures(write_report(run, page), partial(_print, out=run.folder), as_json=as_json)


def write_report(run: InstructionRun, page: Path | None = None) -> dict[str, Any]:
    """Write the report as JSON and Markdown, and pages of answers; return it.

    The page in the folder has our own prompts alone; the other one has all that can be read.
    """
    from pasta_lm.measure.instructions_report import instructions_report
    from pasta_lm.measure.pages import answers_page, instructions_page, side_by_side
    from pasta_lm.measure.prompt_sets import OWN

    report, out = instructions_report(run), run.folder
    write_text(out / "report.json", json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    write_text(out / "report.md", instructions_page(report))
    write_text(out / "answers.html", answers_page(side_by_side(run, OWN)))
    if page is not None:
        write_text(page, answers_page(side_by_side(run)))
    return report


def _print(report: Mapping[str, Any], out: Path) -> None:
    rows: list[Sequence[str]] = []
    for name, figures in report["sets"].items():
        for label, part in ((name, figures), *((f"  {k}", v) for k, v in figures["parts"].items())):
            cells = [interval(part[key], 2) for _, key in SPEEDS]
            rows.append([label, str(part["num_prompts"]), *cells, number(part["well_formed"], 3)])
    print_table(["prompts", "n", *(title for title, _ in SPEEDS), "well formed"], rows)
    for name, figures in report["sets"].items():
        typer.echo()
        rows = [
            [title, *(interval(figure) for figure in found)]
            for title, *found in _text_rows(figures)
        ]
        print_table([name, "pasta", "sequential", "difference"], rows)
    if report["references"]:
        typer.echo()
        names = {"taught": report["model"], "baseline": report["baseline"]}
        _print_cost({**names, **report["references"]})
    typer.echo(
        f"\n{report['kind']}: {report['model']} against the sequential answers of "
        f"{report['baseline']}; greedy, at most {report['max_tokens']} tokens; 95 % intervals; "
        f"{out / 'report.md'} has all figures"
    )


def _text_rows(figures: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Yield a set's measures: a title, the figures of both sides and of their difference."""
    measures = {key: one for key, one in figures["text"].items() if one["pasta"] is not None}
    for reader, found in figures["read_by"].items():
        measures |= {f"{key}, {reader}": one for key, one in found.items()}
    for title, one in measures.items():
        yield title, one["pasta"], one["sequential"], one["difference"]
    if checked := figures["ifeval"]:
        for key in ("prompt_strict", "prompt_loose", "instruction_strict", "instruction_loose"):
            ends = ("", "_baseline", "_difference")
            yield f"ifeval {key}", *(checked[key + end] for end in ends)


def _print_cost(found: Mapping[str, Any]) -> None:
    """Print the costs as a table, over all answers and over those with blocks."""
    from pasta_lm.measure.cost import REGIONS

    rows = []
    for label, part in (("all", found), ("with blocks", found["forked"])):
        rows.append([f"{label}: {part['num_answers']} answers"])
        for key, title in COSTS.items():
            if key in part:
                regions = part[f"{key}_by_region"]
                cells = [interval(regions[name]) for name in REGIONS]
                rows.append([title, interval(part[key]), *cells])
    print_table(["nats per token", "all", *REGIONS], rows)
    typer.echo(
        f"\n{found['kind']}: {found['taught']} against {found['baseline']}; 95 % bootstrap "
        "intervals over answers"
    )
