"""Answers to instructions, judged and timed; the whole report can be computed again offline."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pasta_lm.cli.evaluate import INTERRUPTED, POOL_TOKENS
from pasta_lm.cli.flags import CostLimit, Device, Dtype, Json, Model, option
from pasta_lm.cli.lc_winrate import AllowMissing
from pasta_lm.cli.terminal import bars

if TYPE_CHECKING:
    from pasta_lm.evaluate.alpaca_run import AlpacaRun, AlpacaSettings
    from pasta_lm.evaluate.answering import Progress
    from pasta_lm.remote.budget import Prices
    from pasta_lm.strategies.model import Pasta

INSTRUCTIONS = "tatsu-lab/alpaca_eval"
COLUMNS = (
    ("LC win rate, %", "length_controlled_interval"),
    ("win rate, %", "win_rate_interval"),
    ("theoretical", "theoretical_speedup"),
    ("realised", "realised_speedup"),
    ("parallelism", "parallelism"),
    ("length ratio", "length_ratio"),
)


def alpaca(
    out: Annotated[
        Path, option("--out", metavar="DIR", help="Where everything is kept; a run goes on there.")
    ],
    instructions: Annotated[
        str,
        option(
            "--instructions",
            metavar="FILE|HF_ID",
            help="JSON or JSON lines with 'instruction'; owner/name or owner/name:file of the hub.",
        ),
    ] = INSTRUCTIONS,
    limit: Annotated[
        int | None, option("--limit", metavar="N", min=1, help="The first N instructions.")
    ] = None,
    model: Model = None,
    baseline: Annotated[
        str | None,
        option(
            "--baseline", metavar="DIR|HF_ID", help="Whose sequential answers are the yardstick."
        ),
    ] = None,
    strategies: Annotated[
        str, option("--strategies", metavar="A,B", help="Ways to answer, by comma.")
    ] = "sequential,pasta",
    system: Annotated[
        list[str] | None,
        option(
            "--system",
            metavar="NAME=STRATEGY:MODEL",
            help="One more that answers, under a name of its own; may be given again.",
        ),
    ] = None,
    reference: Annotated[
        str | None,
        option(
            "--reference",
            metavar="FILE",
            help="Answers that are the yardstick of quality, in AlpacaEval's form.",
        ),
    ] = None,
    judge_model: Annotated[
        str | None, option("--judge-model", metavar="NAME", help="As its endpoint knows it.")
    ] = None,
    judge_url: Annotated[
        str | None,
        option("--judge-url", metavar="URL", help="An OpenAI-compatible endpoint, up to /v1."),
    ] = None,
    judge_key_env: Annotated[
        str | None,
        option("--judge-key-env", metavar="NAME", help="The environment variable with its key."),
    ] = None,
    judge_input_price: Annotated[
        float | None,
        option(
            "--judge-input-price", metavar="USD", min=0, help="For a million tokens that it reads."
        ),
    ] = None,
    judge_output_price: Annotated[
        float | None,
        option(
            "--judge-output-price",
            metavar="USD",
            min=0,
            help="For a million tokens that it writes.",
        ),
    ] = None,
    cost_limit: CostLimit = None,
    template: Annotated[
        str,
        option(
            "--template",
            metavar="NAME|FILE.md",
            help="What the judge is told: stated-confidence-v1, one-token-v1 or a page.",
        ),
    ] = "stated-confidence-v1",
    difficulty: Annotated[
        str | None, option("--difficulty", metavar="CSV", help="Of AlpacaEval's instructions.")
    ] = None,
    gamed: Annotated[
        str | None, option("--gamed", metavar="CSV", help="Verdicts on the gamed reference.")
    ] = None,
    num_timed: Annotated[
        int | None,
        option("--num-timed", metavar="N", min=0, help="Instructions decoded alone; all if none."),
    ] = None,
    max_tokens: Annotated[
        int, option("--max-tokens", metavar="N", min=1, help="Tokens of an answer, all threads.")
    ] = 2048,
    pool_tokens: Annotated[
        int,
        option("--pool-tokens", metavar="N", min=1, help="Cache entries of each model's engine."),
    ] = POOL_TOKENS,
    dtype: Dtype = None,
    device: Device = None,
    allow_missing: AllowMissing = False,
    offline: Annotated[
        bool,
        option("--offline", help="Compute the report of a stored run again; nothing is asked."),
    ] = False,
    json: Json = False,
) -> None:
    """Answer instructions, have them judged, and report.

    Greedy, one prompt at a time, all systems in turn. Answers and raw replies are kept in the
    folder; a stopped run goes on. Without --judge-model only speed is reported.
    """
    from json import dumps

    from pasta_lm.cli.terminal import silence_libraries
    from pasta_lm.evaluate.alpaca_output import write_outputs
    from pasta_lm.evaluate.alpaca_report import alpaca_report
    from pasta_lm.evaluate.alpaca_run import AlpacaSettings, begin_run, open_run
    from pasta_lm.remote.budget import Prices, require_prices
    from pasta_lm.strategies.model import Pasta

    prices = Prices(judge_input_price, judge_output_price)
    require_prices(prices, cost_limit)
    silence_libraries()
    stopped = False
    if offline:
        run = open_run(out)
    else:
        settings = AlpacaSettings(
            instructions=instructions,
            limit=limit,
            systems=tuple(_systems(model, baseline, strategies, system or [])),
            reference=reference,
            judge_model=judge_model,
            judge_url=judge_url,
            template=template,
            difficulty=difficulty,
            gamed=gamed,
            num_timed=num_timed,
            max_tokens=max_tokens,
        )
        run = begin_run(out, settings)
        try:
            load = partial(
                Pasta.from_pretrained, dtype=dtype, device=device, pool_tokens=pool_tokens
            )
            with bars() as show:
                _answer(run, show, load)
            stopped = _judge(run, judge_key_env, prices, cost_limit)
        except KeyboardInterrupt:
            typer.echo("pasta: interrupted; the same command goes on where it stopped", err=True)
            raise typer.Exit(INTERRUPTED) from None
    report = alpaca_report(run, allow_missing=allow_missing)
    write_outputs(run, report)
    if json:
        typer.echo(dumps(report, ensure_ascii=False))
    else:
        _print(report, out)
    refused = {name: one["refused"] for name, one in report["systems"].items() if "refused" in one}
    for name, reason in refused.items():
        hint = "run again, or --allow-missing gives both rates"
        typer.echo(f"pasta: {name}: {reason}; {hint}", err=True)
    if refused or stopped:
        raise typer.Exit(1)


def _systems(
    model: str | None, baseline: str | None, strategies: str, more: list[str]
) -> list[Any]:
    """Return who answers: the sequential baseline first, which is always there."""
    from pasta_lm.cli.flags import require_one_of
    from pasta_lm.errors import UsageError
    from pasta_lm.evaluate.instruction_answers import System
    from pasta_lm.strategies import sequential
    from pasta_lm.strategies.model import BUILTIN, STRATEGIES, baseline_of

    ours = model or BUILTIN
    names = [name.strip() for name in strategies.split(",")]
    found = [System(sequential.NAME, sequential.NAME, baseline or baseline_of(ours))]
    found += [System(name, name, ours) for name in names if name != sequential.NAME]
    for given in more:
        name, _, rest = given.partition("=")
        strategy, _, of = rest.partition(":")
        if not name or not strategy or not of:
            raise UsageError(f"--system {given!r} is not of the form NAME=STRATEGY:MODEL")
        found.append(System(name, strategy, of))
    for one in found:
        require_one_of("--strategies", one.strategy, STRATEGIES)
    return found


def _answer(run: AlpacaRun, progress: Progress, load: Callable[[str], Pasta]) -> None:
    """Let all systems answer what they have not answered yet; models are loaded for that alone."""
    from pasta_lm import __version__
    from pasta_lm.engines.request import SamplingParams
    from pasta_lm.evaluate.instruction_answers import answer_id, answer_instructions
    from pasta_lm.evaluate.provenance import provenance

    settings, journal = run.settings, run.answers
    keys = [answer_id(s.name, one.id) for s in settings.systems for one in run.instructions]
    if all(key in journal.rows for key in keys):
        return
    models = {name: load(name) for name in {system.model: None for system in settings.systems}}
    answer_instructions(
        settings.systems,
        models,
        run.instructions,
        journal,
        SamplingParams(max_tokens=settings.max_tokens),
        progress,
        num_timed=settings.num_timed,
        provenance={name: provenance(one, __version__) for name, one in models.items()},
    )


def _judge(run: AlpacaRun, key_env: str | None, prices: Prices, limit_usd: float | None) -> bool:
    """Ask the judge what it was not asked yet, and say what that costs and what it left open.

    Returns:
        Whether the cost limit ended it.
    """
    from pasta_lm.evaluate.alpaca_run import all_comparisons, judge_answers
    from pasta_lm.remote.budget import CostLimitError, Spending
    from pasta_lm.remote.client import ChatClient, Endpoint

    settings: AlpacaSettings = run.settings
    if settings.judge_model is None or settings.judge_url is None:
        return False
    endpoint = Endpoint(
        base_url=settings.judge_url, model=settings.judge_model, api_key_env=key_env
    )
    with bars() as show:

        def progress(done: int, total: int, spent: Spending) -> None:
            show("comparisons judged", done, total, str(spent))

        judge = run.judge(
            lambda: ChatClient(endpoint), prices=prices, cost_limit_usd=limit_usd, progress=progress
        )
        assert judge is not None
        asked = judge.estimate(all_comparisons(run))
        if not asked.num_requests:
            return False
        typer.echo(f"pasta: the judge is to be asked: {asked}", err=True)
        stopped: CostLimitError | None = None
        try:
            judge_answers(run, judge)
        except CostLimitError as exc:
            stopped = exc
    typer.echo(f"pasta: all replies of the judge: {judge.spending()}", err=True)
    if judge.failures:
        first = next(iter(judge.failures.values()))
        typer.echo(f"pasta: {len(judge.failures)} comparisons got no reply: {first}", err=True)
    if stopped is not None:
        typer.echo(f"pasta: {stopped}", err=True)
    return stopped is not None


def _print(report: dict[str, Any], out: Path) -> None:
    systems = report["systems"]
    width = max(len(name) for name in systems) + 2
    typer.echo(f"{'system':<{width}}{'n':>6}" + "".join(f"{title:>24}" for title, _ in COLUMNS))
    for name, figures in systems.items():
        cells = "".join(f"{_cell(figures.get(key)):>24}" for _, key in COLUMNS)
        typer.echo(f"{name:<{width}}{figures['num_prompts']:>6}{cells}")
        lost = figures.get("win_rate_missing_lost")
        if lost is not None:
            missing = figures["n_missing"]
            typer.echo(f"{'':<{width}}with {missing} missing verdicts lost: win rate {lost:.2f} %")
        if "pipeline_check" in figures:
            typer.echo(f"{'':<{width}}{figures['pipeline_check']}")
    kinds = sorted({kind for figures in systems.values() for kind in figures["kinds"]})
    typer.echo(f"\n{report['comparability']}")
    typer.echo(
        f"{', '.join(kinds)}; against {report['baseline']}; 95 % intervals; speedups are geometric "
        f"means\n{out / 'report.html'} has everything"
    )


def _cell(figure: dict[str, float] | None) -> str:
    if figure is None:
        return "-"
    return f"{figure['mean']:.2f} [{figure['low']:.2f}, {figure['high']:.2f}]"
