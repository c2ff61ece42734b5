"""Train: both stages, and the tokenizer of a model that starts from nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pasta_lm.cli.flags import option
from pasta_lm.cli.terminal import bars, has_bars

INTERRUPTED = 130

app = typer.Typer(no_args_is_help=True, help="Teach a model to mark what is independent.")

Recipe = Annotated[
    Path, typer.Argument(metavar="CONFIG.toml", help="The recipe; see runs/recipes.")
]
Changes = Annotated[
    list[str] | None,
    option("--set", metavar="KEY=VALUE", help="Change a key: train.steps=100. May be repeated."),
]


@app.command()
def sft(
    config: Recipe,
    changes: Changes = None,
    resume: Annotated[
        bool, option("--resume", help="Go on from the newest checkpoint, if there is one.")
    ] = False,
    dry_run: Annotated[
        bool, option("--dry-run", help="Show an example as it is learned, and stop.")
    ] = False,
) -> None:
    """Finetune on annotated answers, or train a model from nothing.

    Shows one example as the model meets it, then trains. Writes checkpoints, log.jsonl and, when
    it is done, the model folder; its path is printed.
    """
    from pasta_lm.cli.terminal import silence_libraries
    from pasta_lm.train.config import read_config

    recipe = read_config(config, changes or ())
    silence_libraries()
    from pasta_lm.train.processes import is_first
    from pasta_lm.train.sft import preflight, train_sft

    if dry_run:
        typer.echo(preflight(recipe), err=True)
        return
    try:
        folder = train_sft(recipe, resume=resume)
        if is_first():
            typer.echo(str(folder))
    except KeyboardInterrupt:
        typer.echo("pasta: interrupted; --resume goes on from the last checkpoint", err=True)
        raise typer.Exit(INTERRUPTED) from None


@app.command()
def preference(
    config: Recipe,
    changes: Changes = None,
    resume: Annotated[
        bool, option("--resume", help="Go on where an earlier run stopped, whatever it was doing.")
    ] = False,
    dry_run: Annotated[
        bool, option("--dry-run", help="Sample, score and show a pair, and stop.")
    ] = False,
) -> None:
    """Teach a finetuned model to prefer what is fast and good.

    In rounds: samples prompts, scores the samples, and learns from the best and the worst of each.
    Everything lies below train.out; the folder of the last round's model is printed.
    """
    from pasta_lm.cli.terminal import silence_libraries
    from pasta_lm.train.preference_config import read_preference_config

    recipe = read_preference_config(config, changes or ())
    silence_libraries()
    from pasta_lm.train.preference import train_preference

    if dry_run:
        from pasta_lm.train.preference_preflight import preflight

        typer.echo(preflight(recipe), err=True)
        return
    try:
        with bars() as show:
            seen = show if has_bars() else None
            folder = train_preference(recipe, resume=resume, show=seen)
        typer.echo(str(folder))
    except KeyboardInterrupt:
        typer.echo("pasta: interrupted; --resume goes on where it stopped", err=True)
        raise typer.Exit(INTERRUPTED) from None


@app.command()
def tokenizer(
    out: Annotated[Path, option("--out", metavar="DIR", help="Where the tokenizer is saved.")],
    num_tasks: Annotated[
        int, option("--num-tasks", metavar="N", min=1, help="Training tasks to learn pieces from.")
    ] = 6000,
) -> None:
    """Train the built-in model's tokenizer, the same every time."""
    from itertools import islice

    from pasta_lm.cli.terminal import silence_libraries
    from pasta_lm.tasks import mixture
    from pasta_lm.tasks.registry import TOKENIZER_SEED

    silence_libraries()
    from pasta_lm.train.tokenizer import train_tokenizer

    drawn = islice(mixture("train", TOKENIZER_SEED), num_tasks)
    trained = train_tokenizer(text for task in drawn for text in (task.prompt, task.text))
    trained.save_pretrained(out)
    typer.echo(f"{out}: {len(trained)} pieces")


@app.command()
def router(
    model: Annotated[Path, typer.Argument(metavar="DIR", help="The model folder it is for.")],
    annotator: Annotated[
        str, option("--annotator", metavar="NAME", help="Who says which answers have points.")
    ] = "sot_noisy",
    num_tasks: Annotated[
        int, option("--num-tasks", metavar="N", min=1, help="Training prompts to learn from.")
    ] = 4000,
) -> None:
    """Learn from prompts alone which of them get a skeleton."""
    from pasta_lm.cli.flags import require_one_of
    from pasta_lm.errors import ModelNotFoundError
    from pasta_lm.train.annotators import SOT_ANNOTATORS
    from pasta_lm.train.router import train_router

    require_one_of("--annotator", annotator, list(SOT_ANNOTATORS))
    if not (model / "config.json").is_file():
        raise ModelNotFoundError(f"{model}: no config.json there", hint="name a model folder")
    found = train_router(model, annotator, num_tasks)
    typer.echo(
        f"{found.file}: agrees with the true structure on {found.agreement:.1%} of dev prompts, "
        f"gives {found.routed:.1%} a skeleton"
    )
