"""Teach a model PASTA-LANG from its own answers, in steps that survive any interruption.

::

    01-answers     the model answers instructions
    02-annotated   the independent parts of its answers are marked
    03-pasta       Pasta-SFT on the answers with tags
    04-preference  stage two, if the recipe has it
    model          the taught model, with its card
    05-measures    the taught model against the untaught one on held-out instructions

Each folder has the recipe of its step, so each step can be repeated by hand. A step is done when
``journal.jsonl`` says so.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from pasta_lm.engines.devices import free_memory, usable_device
from pasta_lm.errors import PastaError
from pasta_lm.journal import Journal, Row, read_rows, write_whole
from pasta_lm.learn.annotate.own_answers import USABLE, answer
from pasta_lm.learn.annotate.recipe import AnnotateConfig
from pasta_lm.learn.annotate.run import annotate
from pasta_lm.learn.train.config import PreferenceConfig, SftConfig
from pasta_lm.learn.train.learner import MODEL_FOLDER, check_is_whole
from pasta_lm.learn.train.preference import Show, train_preference
from pasta_lm.learn.train.sft import seconds_of_a_pass, train_sft
from pasta_lm.measure.instructions import (
    InstructionSettings,
    evaluate_instructions,
    instructions_report,
)
from pasta_lm.models.load import hashes_of
from pasta_lm.recipe import toml_of
from pasta_lm.run_folder import RunFolder, full_disk_named, hash_files, say, written_whole
from pasta_lm.teaching.config import TeachConfig
from pasta_lm.teaching.recipes import (
    ANNOTATED,
    ANSWERS,
    MEASURES,
    PASTA,
    PREFERENCE,
    Recipes,
    hold_back,
    recipes_of,
    split_instructions,
    write_held_out,
)

SETTINGS, JOURNAL, RECIPE, CARD = "teach.json", "journal", "recipe.toml", "README.md"
MAY_CHANGE = {"answers.in_flight", "train.save_steps"}  # Keys of the recipe that change no result.
Result = Mapping[str, object]
Recipe = AnnotateConfig | SftConfig | PreferenceConfig | InstructionSettings


class Step(NamedTuple):
    """One step of a run."""

    name: str  # its row in the journal
    title: str
    folder: str
    carry_out: Callable[[], Result | None]  # goes on where it stopped; the journal's entry
    recipe: Recipe | None = None
    verb: str = ""  # the command that repeats it, by its recipe


def teach(
    model: str, out: str | Path, recipe: TeachConfig | None = None, *,
    budget_hours: float | None = None, show: Show = lambda *_: None,
) -> Path:  # fmt: skip
    """Teach a model from its own answers, where a run stopped; return the taught model's folder.

    ``model`` is a folder, a GGUF file or a hub id. No further step begins once ``budget_hours`` are
    used up.
    """
    config = (recipe or TeachConfig()).on(usable_device(None).type)
    if config.train.weights == "adapter":
        check_is_whole(model)
    source = str(Path(model).resolve()) if Path(model).exists() else model
    run = RunFolder(Path(out).resolve(), SETTINGS)
    instructions, held_out = split_instructions(config)
    files = {"instructions": hash_files(instructions), "data.file": hash_files(*config.data.file)}
    run.require_own(MODEL_FOLDER)
    with run.locked(), full_disk_named(run.path):
        run.begin(
            {"model": source, **asdict(config)},
            may_change=MAY_CHANGE,
            inputs=hashes_of("model", source) | files,
            prepare=lambda: write_held_out(run.path, instructions, held_out),
        )
        journal = run.journal(JOURNAL)
        recipes = recipes_of(source, run.path, config, instructions)
        steps = [
            *learning_steps(recipes, run.path, config, show),
            *last_steps(recipes, run.path, config, journal, show),
        ]
        for number, step in enumerate(steps, start=1):
            if step.name not in journal.rows:
                check_budget(journal, budget_hours, step)
                say(f"step {number} of {len(steps)}: {step.title}")
                carry_out(step, run.path, journal)
    return run.path / MODEL_FOLDER


def learning_steps(recipes: Recipes, out: Path, config: TeachConfig, show: Show) -> Iterator[Step]:
    own = recipes.answers
    answers = partial(answer, own, own.load, partial(show, "answers"))
    title = "the model answers instructions"
    yield Step("answers", title, ANSWERS, lambda: answers()._asdict())
    annotated = partial(_annotate, recipes, out, config, show)
    title, verb = "its answers are annotated", "pasta annotate {}/recipe.toml"
    yield Step("annotated", title, ANNOTATED, annotated, recipes.annotation, verb)
    sft = partial(train_sft, recipes.pasta, resume=True)
    verb = "pasta train sft {}/recipe.toml --resume"
    yield Step("pasta", "Pasta-SFT", PASTA, partial(_trained, out, sft), recipes.pasta, verb)
    if (two := recipes.preference) is not None:
        optimise = partial(_trained, out, partial(train_preference, two, resume=True, show=show))
        verb = "pasta train preference {}/recipe.toml --resume"
        title = "rounds of preference optimisation"
        yield Step("preference", title, PREFERENCE, optimise, two, verb)


def last_steps(
    recipes: Recipes, out: Path, config: TeachConfig, journal: Journal, show: Show
) -> Iterator[Step]:

    def copy() -> None:
        trained = journal.rows["pasta" if recipes.preference is None else "preference"]
        with written_whole(out / MODEL_FOLDER) as part:
            shutil.copytree(out / trained["best"], part)

    def measure() -> None:
        evaluate_instructions(out / MEASURES, recipes.measures, show)
        instructions_report(out / MEASURES).write(out / MEASURES)

    def describe_model() -> None:
        report = (out / MEASURES / "report.md").read_text("utf-8")
        card = model_card(recipes.answers.model, config, journal.rows, report)
        write_whole(out / MODEL_FOLDER / CARD, card.encode())

    verb = "pasta evaluate instructions {0}/recipe.toml --out {0}"
    yield Step("model", "the taught model is written", MODEL_FOLDER, copy)
    yield Step("measures", "measures", MEASURES, measure, recipes.measures, verb)
    yield Step("card", "the model card", MODEL_FOLDER, describe_model)


def check_budget(journal: Journal, budget_hours: float | None, step: Step) -> None:
    spent = sum(float(row["wall_s"]) for row in journal.rows.values()) / 3600
    if budget_hours is not None and spent >= budget_hours:
        reason = f"{spent:.2f} of {budget_hours:g} hours are used up before the step: {step.title}"
        hint = "what was done is kept; the same command with more --budget-hours continues"
        raise PastaError(reason, hint=hint)


def carry_out(step: Step, out: Path, journal: Journal) -> None:
    folder = out / step.folder
    if step.recipe is not None and not (folder / RECIPE).exists():
        command = f"Written by pasta teach. {step.verb.format(folder)}"
        write_whole(folder / RECIPE, toml_of(asdict(step.recipe), [command]).encode())
    start = time.monotonic()
    result = step.carry_out() or {}
    wall_s = round(time.monotonic() - start, 2)
    journal.append([{"id": step.name, "wall_s": wall_s, **result}])
    free_memory()


def describe(model: str, recipe: TeachConfig) -> str:
    config = recipe.on(usable_device(None).type)
    instructions, held_out = split_instructions(config)
    with TemporaryDirectory() as folder:
        recipes = recipes_of(model, Path(folder), config, instructions)
        pass_s = seconds_of_a_pass(recipes.pasta)
    two, passes, tokens = config.preference, config.train.passes, config.data.max_tokens
    stage_two = "none: [preference] of the recipe names a judge"
    if two is not None:
        stage_two = f"{two.rounds} rounds of {two.num_prompts} prompts, judged by {two.judge.model}"
    lines = (
        f"answers: {config.answers.num} of {instructions}, {config.answers.in_flight} at a time",
        f"annotation: {config.annotation.annotator}",
        f"stage one: {passes} passes of {tokens} tokens each; positions "
        f"{config.train.positions}, join {config.train.join}, {config.train.weights} weights",
        f"  one pass takes {pass_s:.1f} s on this machine, all {passes * pass_s / 60:.0f} min; "
        "answers, annotation and measures take their time besides",
        f"stage two: {stage_two}",
        f"measures: {min(config.measures.num_prompts, len(held_out))} held-out instructions",
    )
    return "\n".join(lines)


def _annotate(recipes: Recipes, out: Path, config: TeachConfig, show: Show) -> Result:
    total = len(read_rows(out / ANSWERS / USABLE))
    run = annotate(
        recipes.annotation, progress=lambda tally: show("answers annotated", len(tally.rows), total)
    )
    if run.is_interrupted:
        raise KeyboardInterrupt
    hold_back(out, config)
    return {"num_rows": dict(run.tally.num_rows)}


def _trained(out: Path, train: Callable[[], Path]) -> Result:
    return {"best": str(train().resolve().relative_to(out))}


def model_card(model: str, config: TeachConfig, rows: Mapping[str, Row], report: str) -> str:
    name = Path(model).name if Path(model).exists() else model
    has_adapter = config.train.weights == "adapter" and config.preference is None
    tags = "pasta-lang, parallel-decoding" + ", lora" * has_adapter
    front = f"---\nlibrary_name: pasta-lm\nbase_model: {name}\ntags: [{tags}]\n---"
    others = "".join(f" and {Path(file).name}" for file in config.data.file)
    about = (
        f"{name}, taught by `pasta teach` of pasta-lm {version('pasta-lm')} to decide which parts "
        "of an answer are decoded at the same time.\nThe licence of the base applies. It learned "
        f"from its own answers{others}."
    )
    two, counts = config.preference, rows["answers"]["counts"]
    adapters = f"adapters of rank {config.train.rank} and the rows of the tag pieces"
    hours = sum(float(row["wall_s"]) for row in rows.values()) / 3600
    making = {
        "Base": model,
        "Trained": f"{'all weights' if config.train.weights == 'all' else adapters}; "
        f"positions `{config.train.positions}`, join `{config.train.join}`",
        "Own answers": f"{rows['answers']['num_answers']} answers of the base: "
        + ", ".join(f"{count} {reason}" for reason, count in counts.items()),
        "Annotation": f"`{config.annotation.annotator}`; nobody has read the annotated answers",
        "Stage one": f"{config.train.passes} passes of at most {config.data.max_tokens} tokens; "
        f"stopped if the own text lost more than {config.train.max_own_text_rise:g} nats a token",
        "Stage two": f"{two.rounds} rounds, judged by {two.judge.model}" if two else "none",
        "Time": f"{hours:.2f} hours",
    }
    parts = [
        *(front, f"# {name}, taught PASTA-LANG", about),
        "\n".join(f"- **{key}**: {value}." for key, value in making.items()),
        *("## Measured", report.partition("\n")[2].strip()),  # the report has a title of its own
        *("## Not measured", "\n".join(f"- {line}" for line in _not_measured(config))),
    ]
    return "\n\n".join(parts) + "\n"


def _not_measured(config: TeachConfig) -> Iterator[str]:
    yield "quality by a judge: no answer was compared by a judge or by a person"
    if config.measures.ifeval is None:
        yield "instructions that can be checked (IFEval)"
    if not config.measures.num_timed:
        yield "speed: no prompt was timed"
    yield "facts, safety and bias: the base's, and nothing was done about them"
