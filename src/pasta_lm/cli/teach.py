"""``pasta teach``, its steps by hand (``annotate``, ``train``), and ``export``."""

from __future__ import annotations

import json
import shlex
import sys
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pasta_lm.cli import flags
from pasta_lm.cli.fill import read_schema
from pasta_lm.cli.flags import option, require_one_of
from pasta_lm.cli.run import EXAMPLES, check_text
from pasta_lm.cli.terminal import FAILED, INTERRUPTED, bars, interruptible, say
from pasta_lm.documents import read_documents
from pasta_lm.engines.schemas import schema_of
from pasta_lm.errors import UsageError
from pasta_lm.interpreter.positions import Join, PositionStrategy
from pasta_lm.models.names import require_model
from pasta_lm.recipe import read_recipe

if TYPE_CHECKING:
    from pasta_lm.learn.annotate.own_answers import AnswerConfig
    from pasta_lm.learn.annotate.recipe import AnnotateConfig
    from pasta_lm.learn.annotate.run import Tally
    from pasta_lm.models.load import Pretrained

Recipe = Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="Examples: docs/training.md.")]
RESUMABLE = "--resume goes on from what was saved"
Resume = Annotated[bool, option("--resume", "Continue an interrupted run where it stopped.")]
Overwrite = Annotated[bool, option("--overwrite", "Delete the run in train.out, and begin anew.")]


def teach(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A folder, GGUF file or hub id.")],
    out: flags.Out,
    recipe: Annotated[Path | None, option("--recipe R.toml", "See docs/teach.md.")] = None,
    target: Annotated[str | None, option("--for servers", "Train for stock servers.")] = None,
    budget_hours: Annotated[
        float | None, option("--budget-hours H", "Begin no further step after so much time.", min=0)
    ] = None,
    dry_run: flags.DryRun = False,
    changes: flags.Set = None,
    labelled: Annotated[Path | None, option("--parts FILE", "Labelled documents, .jsonl.")] = None,
    schema: Annotated[str | None, option("--schema SCHEMA", "Of --parts, as for fill.")] = None,
    prompt: Annotated[str | None, option("--prompt TEXT", "Above each text of --parts.")] = None,
) -> None:
    """Finetune a model on its own annotated answers, or on fields of labelled documents.

    The model answers instructions; the answers are annotated; it learns from them; with a judge,
    stage two follows; it is measured against the untaught model. Each step is a verb with its
    recipe in DIR. The same command continues a run that was stopped in any way.

    With --parts it learns the fields of a schema as pasta fill asks for them. A line is a document
    of pasta fill and its data, an object; every fifth is held back, to measure with.
    """
    require_model(model)
    has_parts = any(value is not None for value in (labelled, schema, prompt))
    others = recipe, target, budget_hours, dry_run or None
    if has_parts and (not (labelled and schema) or any(value is not None for value in others)):
        reason = "--parts and --schema go together, with no other flags but --set and --prompt"
        raise UsageError(reason, hint=EXAMPLES["teach"])
    if prompt is not None:
        check_text("teach", "the prompt", prompt)
    from pasta_lm.teaching import config, parts, run

    if labelled is not None and schema is not None:
        form = schema_of(read_schema(schema))
        training = parts.recipe_of(model, labelled, out, changes or ())
        documents = parts.labelled(form, prompt, read_documents([labelled]))
        with interruptible():
            typer.echo(str(parts.teach_parts(documents, form, prompt, training)))
        return
    settings = read_recipe(recipe, config.TeachConfig, changes or ())
    if target is not None:
        require_one_of("--for", target, ["servers"])
        settings = settings.for_servers()
    if dry_run:
        typer.echo(run.describe(model, settings), err=True)
        return
    with interruptible(), bars() as show:
        folder = run.teach(model, out, settings, budget_hours=budget_hours, show=show)
    typer.echo(str(folder))


WAITING = "waiting for {} requests in flight; Ctrl-C again stops at once"
MAX_ESTIMATED_ROWS = 1000  # read from the hub for an estimate; the run reads them again


def annotate(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="See docs/annotation.md.")],
    limit: flags.Limit = None, dry_run: flags.DryRun = False,
    engine: Annotated[str | None, option("--engine URL[,URL]", "Servers of the teacher.")] = None,
) -> None:  # fmt: skip
    """Mark the independent parts of the answers of a data set.

    A teacher model on a server or a rule marks them; with a table [answers] a model answers the
    instructions first. Every reply is saved when it arrives, so the same command continues a run
    that was stopped. Writes a journal and, from it, the records and the failures.
    Ctrl-C waits for the requests in flight and sends no others; a second Ctrl-C stops at once.
    """
    from pasta_lm.learn.annotate import recipe, run

    settings = read_recipe(config, recipe.AnnotateConfig)
    if engine is not None:
        settings = settings.taught_by(engine)
    if settings.answers is not None and not dry_run:
        _answer_first(settings.answers)
    num_rows = _print_estimate(settings, limit, with_request=dry_run)
    if dry_run:
        return
    to_continue = f"To go on: {shlex.join(['pasta', *sys.argv[1:]])}"
    try:
        with bars() as show:
            done = run.annotate(
                settings, limit=limit, notice=lambda num: say(WAITING.format(num)),
                progress=lambda tally: show("rows", len(tally.rows), num_rows, _summary(tally)),
            )  # fmt: skip
    except KeyboardInterrupt:
        say(f"stopped at once; what was paid is kept. {to_continue}")
        raise typer.Exit(INTERRUPTED) from None
    say(f"{len(done.tally.rows)} rows: {_summary(done.tally)}")
    if done.is_interrupted:
        say(f"stopped by interrupt. {to_continue}")
    for file in done.files:
        typer.echo(str(file))
    if done.is_interrupted:
        raise typer.Exit(INTERRUPTED)
    if done.tally.num_rows["failed"] and not done.tally.num_rows["ok"]:
        say("no row was annotated: failed.jsonl has the reasons")
        raise typer.Exit(FAILED)


def _summary(tally: Tally) -> str:
    rows = ", ".join(f"{tally.num_rows[name]} {name}" for name in ("ok", "failed", "skipped"))
    return f"{rows}; {tally.spent}"


def _answer_first(recipe: AnswerConfig) -> None:
    from pasta_lm.learn.annotate.own_answers import answer

    with interruptible(), bars() as show:
        answered = answer(recipe, recipe.load, partial(show, "answers"))
    counts = ", ".join(f"{count} {reason}" for reason, count in answered.counts.items())
    say(f"{answered.num_answers} answers, {answered.num_tokens} tokens: {counts}")


def _print_estimate(recipe: AnnotateConfig, limit: int | None, *, with_request: bool) -> int | None:
    """Print the work of a run, and its first request; return the number of rows if it is known."""
    from pasta_lm.learn.annotate import run as annotation

    if recipe.teacher is None:
        say(f"{recipe.annotator} sends no requests")
        return None
    is_sample = recipe.rows.hub is not None and (limit is None or limit > MAX_ESTIMATED_ROWS)
    some = islice(annotation.source_rows(recipe, limit), MAX_ESTIMATED_ROWS if is_sample else None)
    num_rows, needs = annotation.estimate(some, recipe.teacher)
    say(f"estimate for {'the first ' if is_sample else ''}{needs}")
    for message in annotation.first_request(recipe, limit) if with_request else ():
        typer.echo(f"--- {message['role']}\n{message['content']}")
    return limit if is_sample else num_rows


def sft(
    config: Recipe, changes: flags.Set = None, resume: Resume = False, overwrite: Overwrite = False
) -> None:
    """Finetune a model on annotated answers.

    Prints one encoded example, then trains. Writes checkpoints, log.jsonl and the model folder to
    train.out, and prints the path of the model folder.
    """
    from pasta_lm.learn.train.config import SftConfig

    recipe = read_recipe(config, SftConfig, changes or ())
    require_model(recipe.model.base)
    from pasta_lm.learn.train.sft import train_sft

    with interruptible(RESUMABLE):
        typer.echo(str(train_sft(recipe, resume=resume, overwrite=overwrite)))


def preference(
    config: Recipe, changes: flags.Set = None, engine: flags.Engine = None, resume: Resume = False,
    overwrite: Overwrite = False, write_pairs: flags.Pairs = None,
) -> None:  # fmt: skip
    """Train a finetuned model to prefer fast and good answers.

    Each round samples answers to prompts, scores them, and trains on the best and the worst of
    each prompt. Writes everything to train.out, and prints the model folder of the last round.
    With --engine, servers sample; from round two on they must serve the newest folder.
    """
    from pasta_lm.learn.train.config import PreferenceConfig

    served = [f"rollouts.servers.addresses={json.dumps(engine)}"] * (engine is not None)
    recipe = read_recipe(config, PreferenceConfig, [*served, *(changes or ())])
    require_model(recipe.model.base)
    from pasta_lm.learn.train.preference import train_preference

    with interruptible(RESUMABLE), bars() as show:
        train = partial(train_preference, recipe, resume=resume, overwrite=overwrite)
        typer.echo(str(train(to_read=write_pairs, show=show)))


def export(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=flags.MODELS)],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder, or the .gguf file.")],
    merged: Annotated[
        bool, option("--merged", "Write a model folder for transformers, vLLM and SGLang.")
    ] = False,
    gguf: Annotated[bool, option("--gguf", "Write a GGUF file for llama.cpp.")] = False,
    dtype: Annotated[
        str, option("--dtype DTYPE", "float32, bfloat16 or float16; GGUF files also q8_0.")
    ] = "bfloat16",
) -> None:
    """Write a model, adapter merged, for stock servers.

    The tag pieces are special tokens. The output is complete or not there: nothing is overwritten,
    and nothing is left after an error.
    """
    if merged is gguf:
        hint = "--merged writes a folder for vLLM and SGLang, --gguf a file for llama.cpp"
        raise UsageError("give either --merged or --gguf", hint=hint)
    require_model(model)
    from pasta_lm.models.export import export_gguf, export_merged
    from pasta_lm.models.load import num_parameters

    if merged:
        done, server = export_merged(model, out, dtype), "vllm serve"
    else:
        done, server = export_gguf(model, out, dtype), "llama-server -m"
    num_weights, num_pieces = num_parameters(done.source.model), len(done.source.piece_ids)
    typer.echo(
        f"{out}: {num_weights / 1e6:,.1f} M parameters, {done.dtype}, "
        f"{done.num_bytes / 1e6:,.1f} MB, {num_pieces} tag pieces; {server} {out}"
    )
    say(_exactness(done.source))


def _exactness(model: Pretrained) -> str:
    if not model.piece_ids:
        return "this model has no tag pieces: it was not taught PASTA-LANG"
    if model.config is None:
        unknown = "it is not known with which positions this model was trained"
        return f"{unknown}; a stock server is exact for positions continue with join recompute"
    positions, join = model.config.positions, model.config.join
    exactness, needs = "exact", ", and pasta run --engine needs --allow-inexact"
    if positions is not PositionStrategy.CONTINUE:
        exactness = f"not exact{needs}"
    elif join is Join.SHARED:
        exactness = f"exact up to an answer's first sync{needs}"
    return f"trained with positions {positions}, join {join}: a stock server is {exactness}"
