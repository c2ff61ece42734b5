"""The order of the compute: headline, rivals, further seeds, ablations.

What time does not reach is listed all the same, with the command that runs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from plan import Plan
from steps import Options, Step, part_of
from trials import trials

WEIGHTS = ("4", "1", "2", "8", "inf")
"""The paper's lambda; the first one samples for all others in round one, and is the headline."""
FIRST = WEIGHTS[0]
SEEDS = (0, 1, 2)
TIMED_TOY = ("--num-timed", "1")
SHAPE_125M = "benchmarks/shapes/llama-125m.json"
TOY_SHAPE = "runs/recipes/llama-tiny.json"
RIVALS = (
    ("apar-noisy", "apar-bon", "APAR", "apar"),
    ("rule-pasta", "rule-pasta-bon", "rule-pasta", "pasta"),
)
"""Finetuning, stage two, method and strategy of those that have a stage two."""
OWN_RULES = (
    ("apar", "apar-own-bon", "APAR", "apar"),
    ("rule-lines", "rule-lines-bon", "rule-pasta", "pasta"),
)
"""The same by their own data rules, which no annotator's noise has touched."""
ON_THE_WAY = "Pasta-BoN, on the way"
"""Method of models before the last round: they are shown, and enter no verdict."""


def comparison(options: Options) -> Plan:
    """Return the whole comparison, whatever of it is asked for now."""
    plan = Plan(options)
    for seed in dict.fromkeys((*SEEDS, *options.seeds)):
        plan.group = f"seed-{seed}"
        headline(plan, seed)
        rivals(plan, seed)
        hard_split(plan, seed)
        if not seed:
            yardsticks(plan)
    plan.group = "trials"
    trials(plan)
    plan.group = "ablations"
    ablations(plan)
    return plan


def wanted(plan: Plan) -> Iterator[Step]:
    """Yield the steps that the options ask for, in order."""
    groups = {f"seed-{seed}" for seed in plan.options.seeds}
    groups |= {"trials"} if plan.options.has_trials else set()
    groups |= {"ablations"} if plan.options.has_ablations else set()
    for step in plan.steps.values():
        if step.group in groups:
            yield step


def headline(plan: Plan, seed: int) -> None:
    """PASTA from the noisy set, and the baseline."""
    page = own = f"seed-{seed}"
    is_tiny = plan.options.is_tiny
    baseline = plan.sft(f"{own}/baseline", "baseline", seed)
    plan.page(page, f"PASTA and its rivals on one base, training seed {seed}", baseline)
    noisy = plan.sft(f"{own}/pasta-noisy", "pasta-noisy", seed)
    plan.point(page, noisy, "Pasta-SFT, noisy", "Pasta-SFT", "noisy")
    run = f"{own}/pasta-bon"
    (first,) = plan.weighted(run, "pasta-bon-4", seed, noisy, [FIRST], FIRST)
    for label, where in (("tenth", "round-1/model-tenth"), ("round 1", "round-1/model")):
        plan.point(
            page,
            first,
            f"Pasta-BoN, lambda {FIRST}, {label}",
            ON_THE_WAY,
            label,
            folder=str(plan.options.out / first / where),
            suffix=f"-{label.replace(' ', '-')}",
        )
    flags = ("--bounds", *(TIMED_TOY if is_tiny else ()))
    step = bon_point(plan, page, first, "Pasta-BoN", flags=flags)
    for bound in ("perfect forks", "always fork", "random fork"):
        plan.point_of(page, step, bound.capitalize(), "bound", strategy=bound)
    others = WEIGHTS[-1:] if is_tiny else WEIGHTS[1:]
    for name in plan.weighted(run, "pasta-bon-4", seed, noisy, others, FIRST):
        bon_point(plan, page, name, "Pasta-BoN")
    weight = ("score.quality_weight=1000.0",) if is_tiny else ()
    bon = plan.bon(f"{own}/baseline-bon", "baseline-bon", seed, baseline, *weight)
    plan.point(page, bon, "Baseline-BoN", "sequential", "BoN")
    sequential(plan, page, baseline)


def bon_point(plan: Plan, page: str, run: str, method: str, rules: str = "", **more: Any) -> str:
    """Add the last model of a run of stage two as a point; its name ends with its weight."""
    weight = run.rpartition("-")[2]
    return plan.point(page, run, f"{method}{rules}, lambda {weight}", method, weight, **more)


def sequential(plan: Plan, page: str, baseline: str) -> None:
    """The exact sequential ways: plain, prompt lookup, a draft model's guesses."""
    draft = plan.draft()
    timed = TIMED_TOY if plan.options.is_tiny else ()
    step = plan.point(
        page,
        baseline,
        "Baseline-SFT",
        "sequential",
        "SFT",
        strategy="sequential,prompt-lookup,draft-model",
        flags=("--draft", plan.folders[draft], *timed),
        needs=(draft,),
    )
    for strategy in ("prompt-lookup", "draft-model"):
        plan.point_of(page, step, f"Baseline-SFT, {strategy}", "sequential", strategy=strategy)


def rivals(plan: Plan, seed: int) -> None:
    """APAR, SoT and rule-pasta, each in its best form; then the gold sets, and other weights."""
    page = own = f"seed-{seed}"
    for recipe, run, method, strategy in RIVALS:
        trained = plan.sft(f"{own}/{recipe}", recipe, seed)
        plan.point(page, trained, f"{method}-SFT", method, "SFT", strategy=strategy)
        (name,) = plan.weighted(f"{own}/{run}", f"{run}-4", seed, trained, [FIRST], FIRST)
        bon_point(plan, page, name, f"{method}-BoN", strategy=strategy)
    points_at_once(plan, page, seed)
    if not plan.options.is_tiny:
        own_rules(plan, page, seed)
    golds = (("pasta", "Pasta-SFT", "pasta"), ("apar", "APAR", "apar"), ("sot", "SoT", "sot"))
    for stem, method, strategy in golds:
        trained = plan.sft(f"{own}/{stem}-gold", f"{stem}-gold", seed)
        name = f"{method.removesuffix('-SFT')}-SFT, gold"
        plan.point(page, trained, name, method, "gold", strategy=strategy)
    for recipe, run, method, strategy in () if plan.options.is_tiny else RIVALS:
        base, names = f"{own}/{recipe}", f"{own}/{run}"
        for name in plan.weighted(names, f"{run}-4", seed, base, WEIGHTS[1:], FIRST):
            bon_point(plan, page, name, f"{method}-BoN", strategy=strategy)


def points_at_once(plan: Plan, page: str, seed: int) -> None:
    """SoT: finetuned, with its router, and prompted, which needs no training."""
    own = f"seed-{seed}"
    sot = plan.sft(f"{own}/sot-noisy", "sot-noisy", seed)
    router = plan.router(f"{own}/sot-router", sot)
    both = "sot,sot-router"
    step = plan.point(page, sot, "SoT-SFT", "SoT", "SFT", strategy=both, needs=(router,))
    plan.point_of(page, step, "SoT-SFT, routed", "SoT", "routed", strategy="sot-router")
    baseline = f"{own}/baseline"
    plan.point(page, baseline, "SoT, prompted", "SoT", "prompted", strategy="sot", suffix="-sot")


def own_rules(plan: Plan, page: str, seed: int) -> None:
    """The rivals taught by their own data rules: what they have where no annotator is asked."""
    own, rules = f"seed-{seed}", ", own rules"
    for recipe, run, method, strategy in OWN_RULES:
        trained = plan.sft(f"{own}/{recipe}", recipe, seed)
        plan.point(page, trained, f"{method}-SFT{rules}", method, "rules", strategy=strategy)
        stage_two = next(two for _, two, of, _ in RIVALS if of == method)
        (name,) = plan.weighted(f"{own}/{run}", f"{stage_two}-4", seed, trained, [FIRST], FIRST)
        bon_point(plan, page, name, f"{method}-BoN", rules, strategy=strategy)
    trained = plan.sft(f"{own}/sot", "sot", seed)
    plan.point(page, trained, f"SoT-SFT{rules}", "SoT", "rules", strategy="sot")


def hard_split(plan: Plan, seed: int) -> None:
    """The same on the hard split: more records than training has seen; grades alone."""
    own, page = f"seed-{seed}", f"hard-{seed}"
    plan.page(page, f"The hard split, training seed {seed}", f"{own}/baseline", "hard")
    weights = [FIRST] if plan.options.is_tiny else WEIGHTS
    for weight in weights:
        bon_point(plan, page, f"{own}/pasta-bon-{weight}", "Pasta-BoN")
    if not plan.options.is_tiny:
        plan.point(page, f"{own}/pasta-noisy", "Pasta-SFT, noisy", "Pasta-SFT", "noisy")
        for _, run, method, strategy in RIVALS:
            bon_point(plan, page, f"{own}/{run}-{FIRST}", f"{method}-BoN", strategy=strategy)
        plan.point(page, f"{own}/sot-noisy", "SoT-SFT", "SoT", "SFT", strategy="sot")


def yardsticks(plan: Plan) -> None:
    """What a step costs, and the strategies' programs at another shape."""
    results, is_tiny = plan.options.out / "results", plan.options.is_tiny
    shapes = {Path(shape).stem: shape for shape in (TOY_SHAPE if is_tiny else SHAPE_125M,)}
    if not is_tiny:
        shapes = {"base": f"{plan.base}/config.json", **shapes}
    for name, shape in shapes.items():
        file = results / f"step-cost-{name}.json"
        words = ("benchmarks/step_cost.py", shape, str(part_of(file)))
        words += ("--rounds", "1", "--widths", "1,2") if is_tiny else ()
        needs = (plan.base_name,) if name == "base" else ()
        step = plan.add(f"step-cost/{name}", words, file, needs, (file,), is_alone=True)
        told = {"name": name, "file": str(file), "command": plan.command_of(step)}
        plan.pages["seed-0"].step_costs.append(told)
    programs = (
        (f"pasta-bon-{FIRST}", "pasta", "pasta"),
        (f"pasta-bon-{FIRST}", "perfect forks", "pasta"),
        (f"apar-bon-{FIRST}", "apar", "apar"),
        (f"rule-pasta-bon-{FIRST}", "pasta", "pasta"),
        ("sot-noisy", "sot", "sot"),
    )
    for model, strategy, table in programs[:1] if is_tiny else programs:
        replay(plan, model, strategy, table, TOY_SHAPE if is_tiny else SHAPE_125M)


def replay(plan: Plan, model: str, strategy: str, table: str, shape: str) -> None:
    """Decode a model's timed answers again at another shape, by its strategy's own table."""
    page = "seed-0"
    name = "perfect-forks" if strategy == "perfect forks" else model
    out = plan.options.out / "results" / page
    measured = plan.steps[f"{page}/measure/{model}"]
    file = out / f"{name}-programs.jsonl"
    words = ("evaluate", "export", str(measured.parts[0]), "--strategy", strategy)
    taken = plan.add(f"programs/{name}", (*words, "--out", str(file)), file, (measured.name,))
    said = out / f"{name}-replayed.json"
    few = "3" if plan.options.is_tiny else "63"  # three of each family
    words = ("replay", str(file), "--random", shape, "--tokenizer", plan.base)
    words += ("--strategy", table, "--limit", few, "--threads", "1", "--json")
    step = plan.add(f"replay/{name}", words, said, (taken, "base"), (said,), said, is_alone=True)
    told = {"name": f"{name}, {Path(shape).stem}", "file": str(said)}
    plan.pages[page].replays.append(told | {"command": plan.command_of(step)})


def ablations(plan: Plan) -> None:
    """One change at a time to Pasta-BoN with the first weight and training seed 0."""
    page, main = "ablations", f"seed-0/pasta-bon-{FIRST}"
    noisy, recipe = "seed-0/pasta-noisy", "pasta-bon-4"
    plan.page(page, f"One change at a time: Pasta-BoN, lambda {FIRST}, seed 0", "seed-0/baseline")
    measured = f"seed-0/measure/pasta-bon-{FIRST}"
    plan.point_of(page, measured, f"Pasta-BoN, lambda {FIRST}", "Pasta-BoN", FIRST)
    for term in ("speedup", "harmonic"):
        change = f"score.efficiency={term}"
        run = plan.bon(f"{page}/efficiency-{term}", recipe, 0, noisy, change, shares=main)
        plan.point(page, run, f"efficiency term: {term}", "efficiency term", term)
    change = "train.positions=continue"
    sft = plan.sft(f"{page}/continue-sft", "pasta-noisy", 0, change)
    run = plan.bon(f"{page}/continue", recipe, 0, sft, change)
    plan.point(page, run, "positions: continue", "positions", "continue")
    rotate = ("--positions", "rotate")  # trained as predict: until a sync the two are the same
    plan.point(
        page, main, "positions: rotate", "positions", "rotate", suffix="-rotate", flags=rotate
    )
    for what in ("topics", "syncs"):
        change = f"data.tasks.annotator=noisy_without_{what}"
        sft = plan.sft(f"{page}/no-{what}-sft", "pasta-noisy", 0, change)
        run = plan.bon(f"{page}/no-{what}", recipe, 0, sft)
        plan.point(page, run, f"{what} removed", f"no {what}", what)
    for number in ("2", "5", "20"):
        change = f"rollouts.samples={number}"
        run = plan.bon(f"{page}/samples-{number}", recipe, 0, noisy, change)
        plan.point(page, run, f"N = {number}", "N", number)
    more_rounds(plan, page, main)
    for shape in ("llama", "gemma", "qwen"):
        other_shape(plan, shape)


def more_rounds(plan: Plan, page: str, main: str) -> None:
    """Rounds three and four of the main run, which goes on where it ended."""
    for number in (1, 2):
        suffix = "-round-1" if number == 1 else ""
        step = f"seed-0/measure/pasta-bon-{FIRST}{suffix}"
        plan.point_of(page, step, f"rounds: {number}", "rounds", str(number))
    out = plan.options.out / main
    command = ["--set=train.rounds=4" if w == "--set=train.rounds=2" else w
               for w in plan.steps[main].command]  # fmt: skip
    last = out / "round-4" / "model" / "model.safetensors"
    step = plan.add(f"{page}/rounds-4", command, last, (main,))
    for number in (3, 4):
        folder = str(out / f"round-{number}" / "model")
        name, suffix = f"rounds: {number}", f"-{number}"
        plan.folders[step] = folder
        plan.point(page, step, name, "rounds", str(number), folder=folder, suffix=suffix)


def other_shape(plan: Plan, shape: str) -> None:
    """A base of another shape from nothing, and the headline's models on it."""
    page, usual = f"shape-{shape}", plan.base_name
    file = f"model.random.architecture=runs/recipes/{shape}-2m.json"
    plan.base_name = plan.train_base(f"{page}/base", *(() if plan.options.is_tiny else (file,)))
    baseline = plan.sft(f"{page}/baseline", "baseline", 0)
    plan.page(page, f"The headline on a tiny {shape} from nothing", baseline)
    noisy = plan.sft(f"{page}/pasta-noisy", "pasta-noisy", 0)
    plan.point(page, noisy, "Pasta-SFT, noisy", "Pasta-SFT", "noisy")
    run = plan.bon(f"{page}/pasta-bon-{FIRST}", "pasta-bon-4", 0, noisy, baseline=baseline)
    bon_point(plan, page, run, "Pasta-BoN")
    plan.base_name = usual
