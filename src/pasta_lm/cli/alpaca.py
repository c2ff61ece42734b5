"""Evaluate answers to instructions, compared by a judge; win rates of stored judgements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pasta_lm.cli.evaluate import Set, load_models, read_settings, split_names
from pasta_lm.cli.exit_codes import FAILED
from pasta_lm.cli.flags import (
    AllowInexact,
    CostLimit,
    Dialect,
    Engine,
    Json,
    Model,
    Offline,
    Out,
    Recipe,
    Strategies,
    option,
    server_flags,
)
from pasta_lm.cli.tables import interval, number, print_figures, print_table
from pasta_lm.cli.terminal import bars, interruptible, say, silence_libraries

if TYPE_CHECKING:
    from pasta_lm.measure.alpaca import AlpacaRecipe, AlpacaRun

COLUMNS = (
    ("LC win rate, %", "length_controlled_interval"),
    ("win rate, %", "win_rate_interval"),
    ("theoretical", "theoretical_speedup"),
    ("realised", "realised_speedup"),
    ("parallelism", "parallelism"),
    ("length ratio", "length_ratio"),
)
AllowMissing = Annotated[
    bool,
    option(
        "--allow-missing",
        help="Give win rates although verdicts are missing, also with the missing ones lost.",
    ),
]


def alpaca(
    out: Out,
    recipe: Recipe = None,
    limit: Annotated[
        int | None, option("--limit", metavar="N", min=1, help="The first N instructions.")
    ] = None,
    model: Model = None,
    strategies: Strategies = None,
    system: Annotated[
        list[str] | None,
        option(
            "--system",
            metavar="NAME=STRATEGY:MODEL",
            help="One more system, under its own name; may be repeated.",
        ),
    ] = None,
    cost_limit: CostLimit = None,
    allow_missing: AllowMissing = False,
    offline: Offline = False,
    engine: Engine = None,
    dialect: Dialect = None,
    allow_inexact: AllowInexact = False,
    changes: Set = None,
    as_json: Json = False,
) -> None:
    """Answer instructions, have them judged, and report.

    Greedy, one prompt at a time, all systems in turn. Answers and raw replies are kept in the
    folder; a stopped run is continued. Without a judge only speed is reported.
    """
    from pasta_lm.measure.alpaca import AlpacaRecipe, open_run
    from pasta_lm.measure.alpaca_report import alpaca_report, write_outputs

    silence_libraries()
    is_stopped = False
    if offline:
        run = open_run(out)
    else:
        flags = {
            "limit": limit,
            "model": model,
            "strategies": split_names(strategies),
            "systems": system or None,
            **server_flags(engine, dialect, allow_inexact=allow_inexact),
        }
        found = read_settings(AlpacaRecipe, recipe, flags, changes)
        run, is_stopped = _run(out, found, cost_limit)
    report = alpaca_report(run, allow_missing=allow_missing)
    write_outputs(run, report)
    print_figures(report, partial(_print, out=out), as_json=as_json)
    if _print_refusals(report) or is_stopped:
        raise typer.Exit(FAILED)


def _print_refusals(report: Mapping[str, Any]) -> bool:
    """Say which systems have no win rate, and why; return whether there are any."""
    refused = {name: one["refused"] for name, one in report["systems"].items() if "refused" in one}
    for name, reason in refused.items():
        hint = "run again, or --allow-missing gives both rates"
        typer.echo(f"pasta: {name}: {reason}; {hint}", err=True)
    return bool(refused)


def _run(out: Path, recipe: AlpacaRecipe, cost_limit: float | None) -> tuple[AlpacaRun, bool]:
    """Answer and judge what is missing; return the run, and whether the cost limit stopped it."""
    from pasta_lm.learn.chat.budget import Prices, require_prices
    from pasta_lm.measure.alpaca import begin_run

    prices = Prices(recipe.judge.input_price, recipe.judge.output_price)
    require_prices(prices, cost_limit)
    run = begin_run(out, recipe.settings())
    with interruptible():
        _answer(run, recipe)
        is_stopped = _judge(run, recipe.judge.key_env, prices, cost_limit)
    return run, is_stopped


def _answer(run: AlpacaRun, recipe: AlpacaRecipe) -> None:
    """Let the systems answer what is missing; models are loaded only if something is."""
    from pasta_lm.measure.alpaca import answer_instructions

    systems = run.settings.systems
    if all(len(run.rows(system.name)) == len(run.instructions) for system in systems):
        return
    models, made = load_models(
        systems, recipe.dtype, recipe.device, recipe.pool_tokens, recipe.servers
    )
    with bars() as progress:
        answer_instructions(run, models, progress, made)


def _judge(run: AlpacaRun, key_env: str | None, prices: Any, limit_usd: float | None) -> bool:
    """Let the judge compare what it has not yet, and say what that costs.

    Returns:
        Whether the cost limit stopped it.
    """
    from pasta_lm.learn.chat.budget import CostLimitError, Spending
    from pasta_lm.learn.chat.client import ChatClient, Endpoint

    connect: Callable[[], ChatClient]
    model, url = run.settings.judge_model, run.settings.judge_url
    if model is None or url is None:
        return False
    endpoint = Endpoint(base_url=url, model=model, api_key_env=key_env)
    connect = partial(ChatClient, endpoint)
    stopped: CostLimitError | None = None
    with bars() as show:

        def progress(done: int, total: int, spent: Spending) -> None:
            show("comparisons judged", done, total, str(spent))

        judge = run.judge(connect, prices=prices, cost_limit_usd=limit_usd, progress=progress)
        assert judge is not None
        comparisons = run.all_comparisons()
        estimate = judge.estimate(comparisons)
        if not estimate.num_requests:
            return False
        say(f"the judge is to be asked: {estimate}")
        try:
            judge.ask(comparisons)
        except CostLimitError as exc:
            stopped = exc
    typer.echo(f"pasta: all replies of the judge: {judge.spending()}", err=True)
    if judge.failures:
        first = next(iter(judge.failures.values()))
        typer.echo(f"pasta: {len(judge.failures)} comparisons got no reply: {first}", err=True)
    if stopped is not None:
        typer.echo(f"pasta: {stopped}", err=True)
    return stopped is not None


def _print(report: Mapping[str, Any], out: Path) -> None:
    rows: list[Sequence[str]] = []
    for name, figures in report["systems"].items():
        cells = [interval(figures.get(key), 2) for _, key in COLUMNS]
        rows.append([name, str(figures["num_prompts"]), *cells])
        lost = figures.get("win_rate_missing_lost")
        if lost is not None:
            missing = figures["n_missing"]
            rows.append(["", f"with {missing} missing verdicts lost: win rate {lost:.2f} %"])
        if "pipeline_check" in figures:
            rows.append(["", figures["pipeline_check"]])
    print_table(["system", "n", *(title for title, _ in COLUMNS)], rows)
    systems = report["systems"].values()
    kinds = sorted({kind for figures in systems for kind in figures["kinds"]})
    typer.echo(f"\n{report['comparability']}")
    typer.echo(
        f"{', '.join(kinds)}; against {report['baseline']}; 95 % intervals; speedups are geometric "
        f"means\n{out / 'report.md'} has all figures"
    )


def lc_winrate(
    annotations: Annotated[
        Path,
        option("--annotations", metavar="FILE.jsonl[.gz]", help="Stored judgements."),
    ],
    difficulty: Annotated[
        Path, option("--difficulty", metavar="CSV", help="Difficulty by instruction.")
    ],
    gamed: Annotated[
        Path, option("--gamed", metavar="CSV", help="Judgements of the gamed reference.")
    ],
    allow_missing: AllowMissing = False,
    as_json: Json = False,
) -> None:
    """Compute AlpacaEval's win rates from stored judgements.

    Nothing is asked of a judge. Where verdicts are missing, a model has no headline and the exit
    code is 1.
    """
    from pasta_lm.learn.judge.llm_judge import SCRIPTED
    from pasta_lm.measure.judgements import named, read_difficulty, read_gamed, read_judgements
    from pasta_lm.measure.win_rates import Calibration, comparability, win_rate_figures

    models = read_judgements(annotations)
    calibration = Calibration(read_difficulty(difficulty), read_gamed(gamed))
    found: dict[str, dict[str, Any]] = {}
    for name, rows in models.items():
        judge, baseline = named(rows)
        if judge and judge.startswith(SCRIPTED):
            found[name] = {"pipeline_check": f"pipeline check, n = {len(rows)}", "judge": judge}
            continue
        figures = win_rate_figures(rows, calibration, allow_missing=allow_missing)
        verdict = comparability(judge, baseline, figures["n_total"])
        found[name] = figures | {
            "judge": judge,
            "baseline": baseline,
            "is_comparable": verdict.is_comparable,
            "comparability": verdict.label,
        }
    print_figures(found, _print_rates, as_json=as_json)
    for name, figures in found.items():
        if figures.get("n_absent"):
            typer.echo(f"pasta: {name}: {figures['n_absent']} instructions have no row", err=True)
        if "refused" in figures:
            hint = "--allow-missing gives both rates"
            typer.echo(f"pasta: {name}: {figures['refused']}; {hint}", err=True)
    if any("refused" in figures for figures in found.values()):
        raise typer.Exit(FAILED)


LC_COLUMNS = (
    ("LC win rate", "length_controlled_winrate", 2),
    ("SE", "lc_standard_error", 2),
    ("win rate", "win_rate", 2),
    ("SE", "standard_error", 2),
    ("missing lost", "win_rate_missing_lost", 2),
    ("n", "n_total", 0),
    ("missing", "n_missing", 0),
    ("avg length", "avg_length", 0),
)


def _print_rates(found: dict[str, dict[str, Any]]) -> None:
    """Print a line for each model, the best first."""
    order = sorted(found, key=lambda name: -(found[name].get("length_controlled_winrate") or 0))
    rows = [
        [name, *(number(found[name].get(key), n) for _, key, n in LC_COLUMNS)] for name in order
    ]
    print_table(["model", *(title for title, _, _ in LC_COLUMNS)], rows)
    for label in dict.fromkeys(map(_label, found.values())):
        typer.echo(f"\n{label}")


def _label(figures: dict[str, Any]) -> str:
    return str(figures.get("pipeline_check") or figures["comparability"])
