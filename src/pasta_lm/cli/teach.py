"""``pasta teach``, its stages by hand (``train sft``, ``train preference``), and ``export``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pasta_lm.cli.flags import MODELS, DryRun, Engine, Out, Set, option, require_one_of
from pasta_lm.cli.terminal import bars, interruptible, say
from pasta_lm.errors import UsageError
from pasta_lm.interpreter.positions import Join, PositionStrategy

if TYPE_CHECKING:
    from pasta_lm.models.load import Pretrained

Recipe = Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="Examples: docs/training.md.")]
RESUMABLE = "--resume goes on from what was saved"
Resume = Annotated[bool, option("--resume", "Continue an interrupted run where it stopped.")]
Overwrite = Annotated[bool, option("--overwrite", "Delete the run in train.out, and begin anew.")]


def teach(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A folder, GGUF file or hub id.")],
    out: Out,
    recipe: Annotated[Path | None, option("--recipe R.toml", "See docs/teach.md.")] = None,
    target: Annotated[str | None, option("--for servers", "Train for stock servers.")] = None,
    budget_hours: Annotated[
        float | None, option("--budget-hours H", "Begin no further step after so much time.", min=0)
    ] = None,
    dry_run: DryRun = False,
    changes: Set = None,
) -> None:
    """Finetune a model on its own annotated answers.

    The model answers instructions; the answers are annotated; it learns from them; with a judge,
    stage two follows; it is measured against the untaught model. Each step is a verb with its
    recipe in DIR. The same command continues a run that was stopped in any way.
    """
    from pasta_lm.recipe import read_recipe
    from pasta_lm.teaching.config import TeachConfig

    config = read_recipe(recipe, TeachConfig, changes or ())
    if target is not None:
        require_one_of("--for", target, ["servers"])
        config = config.for_servers()
    from pasta_lm.teaching import run

    if dry_run:
        typer.echo(run.describe(model, config), err=True)
        return
    with interruptible(), bars() as show:
        folder = run.teach(model, out, config, budget_hours=budget_hours, show=show)
    typer.echo(str(folder))


def sft(
    config: Recipe, changes: Set = None, resume: Resume = False, overwrite: Overwrite = False,
    dry_run: DryRun = False,
) -> None:  # fmt: skip
    """Finetune a model on annotated answers.

    Prints one encoded example, then trains. Writes checkpoints, log.jsonl and the model folder to
    train.out, and prints the path of the model folder.
    """
    from pasta_lm.learn.train.config import SftConfig
    from pasta_lm.recipe import read_recipe

    recipe = read_recipe(config, SftConfig, changes or ())
    from pasta_lm.learn.train.sft import preflight, train_sft

    if dry_run:
        typer.echo(preflight(recipe), err=True)
        return
    with interruptible(RESUMABLE):
        typer.echo(str(train_sft(recipe, resume=resume, overwrite=overwrite)))


def preference(
    config: Recipe, changes: Set = None, engine: Engine = None, resume: Resume = False,
    overwrite: Overwrite = False, dry_run: DryRun = False,
) -> None:  # fmt: skip
    """Train a finetuned model to prefer fast and good answers.

    Each round samples answers to prompts, scores them, and trains on the best and the worst of
    each prompt. Writes everything to train.out, and prints the model folder of the last round.
    With --engine, servers sample; from round two on they must serve the newest folder.
    """
    from pasta_lm.learn.train.config import PreferenceConfig
    from pasta_lm.recipe import read_recipe

    served = [f"rollouts.servers.addresses={json.dumps(engine)}"] * (engine is not None)
    recipe = read_recipe(config, PreferenceConfig, [*served, *(changes or ())])
    from pasta_lm.learn.train.preference import preflight, train_preference

    if dry_run:
        typer.echo(preflight(recipe), err=True)
        return
    with interruptible(RESUMABLE), bars() as show:
        folder = train_preference(recipe, resume=resume, overwrite=overwrite, show=show)
        typer.echo(str(folder))


def export(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODELS)],
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
