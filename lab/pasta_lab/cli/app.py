"""The command ``pasta-lab``: tasks with known answers, their evaluation, checks of judges."""

from __future__ import annotations

import typer

from pasta_lab.cli import evaluate, examples, fields, judge, matrix, peers, train
from pasta_lab.corpora import rewrite
from pasta_lm.cli import main as run

app = typer.Typer(
    name="pasta-lab", no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False
)
app.command()(examples.examples)
app.command()(fields.fields)
app.command()(fields.schemas)
app.command()(matrix.matrix)
app.command()(peers.peers)
app.command("corpora", hidden=True)(rewrite)
app.add_typer(evaluate.app, name="evaluate")
app.add_typer(judge.app, name="judge")
app.add_typer(train.app, name="train")


@app.callback()
def lab() -> None:
    """Measure pasta-lm on tasks with known answers, and check its judges."""


def main() -> None:
    run(app, "pasta-lab")
