"""``pasta teach``: teach a model of yours, step by step, from its own answers."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from pasta_lm.cli.annotate import answer_all
from pasta_lm.cli.flags import Out, option
from pasta_lm.cli.terminal import Progress, bars, has_bars, interruptible, say, silence_libraries

if TYPE_CHECKING:
    from pasta_lm.learn.train.teach_config import TeachConfig
    from pasta_lm.learn.train.teach_run import TeachRun

T = TypeVar("T")
FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
TITLES = {
    "answers": "the model answers instructions",
    "annotated": "its answers are annotated",
    "baseline": "Baseline-SFT",
    "pasta": "Pasta-SFT",
    "preference": "rounds of preference optimisation",
    "model": "the taught model is written",
    "measures": "measures",
    "card": "the model card",
}
GB = 1e9


def teach(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A model folder, a GGUF file or a hub id.")
    ],
    out: Out,
    recipe: Annotated[
        Path | None, option("--recipe", metavar="R.toml", help="Settings; runs/teach has some.")
    ] = None,
    budget_hours: Annotated[
        float | None,
        option(
            "--budget-hours", metavar="H", min=0, help="Do less, so that the whole takes so long."
        ),
    ] = None,
    dry_run: Annotated[
        bool, option("--dry-run", help="Measure the machine, print the estimate, and stop.")
    ] = False,
    changes: Annotated[
        list[str] | None,
        option("--set", metavar="KEY=VALUE", help="Set a key, such as answers.num=500."),
    ] = None,
) -> None:
    """Teach a model to promise, from its own answers.

    The model answers instructions; the answers are annotated; a sequential baseline and a taught
    model learn from them; rounds of preference optimisation follow; both are measured. Each step
    is a verb with its recipe in DIR. The same command continues a run that was stopped in any way.
    """
    from pasta_lm.learn.train.teach_config import TeachConfig
    from pasta_lm.recipe import read_recipe

    config = read_recipe(recipe, TeachConfig, changes or ())
    silence_libraries()
    from pasta_lm.journal import held
    from pasta_lm.learn.train.teach_run import begin

    if dry_run:
        _show_plan(_measure(model, config, budget_hours), config, out)
        return
    out.mkdir(parents=True, exist_ok=True)
    with interruptible(), held(out / ".lock"), _room(out):
        run = begin(out, model, config, budget_hours)
        carry_out(run)
    typer.echo(str(run.at("model")))


def carry_out(run: TeachRun) -> None:
    """Plan a run if it has no plan, then carry out every step that is not done.

    Raises:
        PastaError: a step failed; what was done before is kept.
    """
    from pasta_lm.learn.train.teach_run import PLAN, STEPS

    if PLAN not in run.journal.rows:
        planned = _measure(run.model, run.config, run.budget_hours)
        _show_plan(planned, run.config, run.folder)
        run.journal.append([{"id": PLAN, **planned}])
    for number, step in enumerate(STEPS, start=1):
        if not run.is_done(step):
            _carry_out_step(run, step, number)


@contextmanager
def _room(out: Path) -> Iterator[None]:
    """Say how to go on where the disk is full."""
    from pasta_lm.errors import PastaError

    try:
        yield
    except Exception as exc:
        # Each library has an error of its own; what the system says is in all of them.
        reason = next((said for said in map(os.strerror, FULL) if said in str(exc)), None)
        if reason is None:
            raise
        raise PastaError(
            f"{out} has no room: {reason}",
            hint="what was done is kept; make room and run the same command again",
        ) from exc


def _carry_out_step(run: TeachRun, step: str, number: int) -> None:
    from pasta_lm.learn.train.teach_cost import hours
    from pasta_lm.learn.train.teach_probe import free_memory
    from pasta_lm.learn.train.teach_run import STEPS

    amounts = run.amounts(step)
    for cut in run.journal.rows[f"{step}/begun"]["cuts"]:
        say(f"to keep within the budget: {cut}")
    expected = hours(amounts, run.config, run.rates()).get(step)
    about = "" if expected is None else f", about {_time(expected)}"
    say(f"step {number} of {len(STEPS)}: {TITLES[step]}{about}; so far {_time(run.spent_hours)}")
    start = time.monotonic()
    with bars() as show:
        result = _STEPS[step](run, show)
    run.finish(step, time.monotonic() - start, **result)
    free_memory()


def _measure(model: str, config: TeachConfig, budget_hours: float | None) -> dict[str, Any]:
    """Return the plan of a run: what the machine reaches with this model, and the amounts."""
    from dataclasses import asdict

    from pasta_lm.learn.train.teach_cost import Amounts, disk, fit, hours, memory
    from pasta_lm.learn.train.teach_probe import dtype_of, in_flight_of, layouts_of, measured_rates

    say("measuring how fast this machine is with this model")
    in_flight, dtype = in_flight_of(config), dtype_of(config)
    shape, rates = measured_rates(model, config, in_flight)
    amounts = Amounts.of(config)
    found, cuts = fit(amounts, budget_hours, lambda one: sum(hours(one, config, rates).values()))
    num_bytes = 4 if dtype == "float32" else 2
    num_layouts = layouts_of(shape.num_weights)
    return {
        "num_weights": shape.num_weights,
        "shape": [*shape],
        "rates": asdict(rates),
        "amounts": [*(amounts if budget_hours is None else found)],
        "cuts": cuts,
        "hours": hours(found, config, rates),
        "memory": memory(shape, config, in_flight, num_bytes, num_layouts),
        "disk": disk(shape, config, found, num_bytes),
        "dtype": dtype,
        "in_flight": in_flight,
        "budget_hours": budget_hours,
    }


def _show_plan(plan: Mapping[str, Any], config: TeachConfig, out: Path) -> None:
    """Say what a run will take, before it begins."""
    kind = "all weights" if config.trains_all(plan["num_weights"]) else "adapters"
    rates = plan["rates"]
    say(
        f"{plan['num_weights'] / 1e6:.0f} million weights, {kind}, {plan['dtype']}; measured: "
        f"{rates['decode_tokens_per_s']:.0f} tokens/s with {plan['in_flight']} answers in flight, "
        f"{1000 * rates['train_s_per_token']:.2f} ms to learn a token"
    )
    for step, one in plan["hours"].items():
        say(f"{_time(one):>8}  {TITLES[step]}")
    say(f"{_time(sum(plan['hours'].values())):>8}  together")
    needed = plan["memory"]
    most = max(needed, key=lambda step: needed[step])
    existing = next(one for one in (out.resolve(), *out.resolve().parents) if one.exists())
    free = shutil.disk_usage(existing).free
    say(
        f"memory: {needed[most] / GB:.1f} GB at most ({most}); disk: {plan['disk'] / GB:.1f} GB, "
        f"{free / GB:.0f} GB are free. All of this is estimated"
    )
    if plan["disk"] > free:
        say(f"{out} has too little room: it will stop when the disk is full")
    for cut in plan["cuts"]:
        say(f"to keep within the budget: {cut}")
    budget = plan["budget_hours"]
    if budget is not None and sum(plan["hours"].values()) > budget:
        say(f"even the least takes longer than {_time(budget)}: it goes on with the least")


def _time(hours: float) -> str:
    return f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.0f} min"


# --- the steps


def _recipe(run: TeachRun, step: str, kind: type[T]) -> T:
    from pasta_lm.learn.train.teach import recipe_of
    from pasta_lm.recipe import read_recipe

    return read_recipe(recipe_of(run, step), kind)


def _answers(run: TeachRun, show: Progress) -> dict[str, Any]:
    from pasta_lm.learn.annotate.own_answers import ANSWERS, AnswerConfig

    is_whole = not run.at("answers", ANSWERS).exists()
    found = answer_all(_recipe(run, "answers", AnswerConfig), show)
    return {**found._asdict(), "is_whole": is_whole}


def _annotated(run: TeachRun, show: Progress) -> dict[str, Any]:
    from pasta_lm.cli.annotate import rule_of
    from pasta_lm.learn.annotate.recipe import AnnotateConfig
    from pasta_lm.learn.annotate.run import annotate
    from pasta_lm.learn.train.teach import reserve

    recipe = _recipe(run, "annotated", AnnotateConfig)
    total = run.journal.rows["answers"]["counts"].get("usable", 0)
    found = annotate(
        recipe,
        rule=rule_of(recipe),
        progress=lambda tally: show("answers annotated", tally.num_ended, total),
    )
    if not found.is_complete:
        raise KeyboardInterrupt
    reserve(run)
    return {"num_rows": dict(found.tally.num_rows)}


def _stage_one(step: str) -> Callable[[TeachRun, Progress], dict[str, Any]]:
    def carry_out(run: TeachRun, _: Progress) -> dict[str, Any]:
        from pasta_lm.learn.train.config import SftConfig
        from pasta_lm.learn.train.sft import train_sft

        config = _recipe(run, step, SftConfig)
        is_whole = not any(run.at(step).glob("checkpoint-*"))
        if not run.at(step, "model").is_dir():
            train_sft(config, resume=True)
        return {"is_whole": is_whole}

    return carry_out


def _preference(run: TeachRun, show: Progress) -> dict[str, Any]:
    from pasta_lm.errors import InputError
    from pasta_lm.learn.train.preference import train_preference
    from pasta_lm.learn.train.preference_config import PreferenceConfig

    stage_one = run.at("pasta", "model")
    if not run.amounts("preference").rounds:
        return {"best": str(stage_one.relative_to(run.folder)), "rounds": []}
    config = _recipe(run, "preference", PreferenceConfig)
    try:
        train_preference(config, resume=True, show=show if has_bars() else None)
    except InputError as exc:
        if not exc.message.startswith("nothing to learn"):
            raise
        say(f"stage two ends here: {exc.message}")
    folders = sorted(run.at("preference").glob("round-*/model"))
    best = folders[-1] if folders else stage_one
    return {"best": str(best.relative_to(run.folder)), "rounds": []}


def _model(run: TeachRun, _: Progress) -> dict[str, Any]:
    from pasta_lm.learn.train.teach import write_model

    write_model(run, run.folder / run.journal.rows["preference"]["best"])
    return {}


def _measures(run: TeachRun, show: Progress) -> dict[str, Any]:
    from pasta_lm.measure.instructions import InstructionSettings, evaluate_instructions
    from pasta_lm.measure.instructions_report import write_report

    settings = _recipe(run, "measures", InstructionSettings)
    write_report(evaluate_instructions(run.at("measures"), settings, show))
    return {}


def _card(run: TeachRun, _: Progress) -> dict[str, Any]:
    import json

    from pasta_lm import __version__
    from pasta_lm.journal import write_whole
    from pasta_lm.learn.train.teach_run import mixed_in
    from pasta_lm.measure.model_card import model_card

    report = json.loads(run.at("measures", "report.json").read_text("utf-8"))
    facts = {
        "model": run.model,
        "version": __version__,
        "rows": dict(run.journal.rows),
        "config": run.config,
        "cuts": run.cuts,
        "trains_all": run.trains_all,
        "mixed_in": [Path(file).name for file in mixed_in(run.config)[0]],
        "amounts": run.amounts("baseline"),
        "hours": run.spent_hours,
    }
    write_whole(run.at("card", "README.md"), model_card(facts, report).encode())
    return {}


_STEPS: Mapping[str, Callable[[TeachRun, Progress], dict[str, Any]]] = {
    "answers": _answers,
    "annotated": _annotated,
    "baseline": _stage_one("baseline"),
    "pasta": _stage_one("pasta"),
    "preference": _preference,
    "model": _model,
    "measures": _measures,
    "card": _card,
}
