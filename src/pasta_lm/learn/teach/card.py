"""The card of a model that ``pasta teach`` taught."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

from pasta_lm.journal import Row
from pasta_lm.learn.teach.config import TeachConfig


def model_card(model: str, config: TeachConfig, rows: Mapping[str, Row], report: str) -> str:
    """Return the card as Markdown.

    Args:
        model: The base: a folder, a GGUF file or a hub id.
        config: The recipe.
        rows: Of the journal, by step.
        report: The report of its evaluation on held-out instructions, as Markdown.
    """
    name = Path(model).name if Path(model).exists() else model
    tags = ["pasta-lang", "parallel-decoding"]
    tags += ["lora"] if _has_adapter(config) else []
    front = f"---\nlibrary_name: pasta-lm\nbase_model: {name}\ntags: [{', '.join(tags)}]\n---"
    others = "".join(f" and {Path(file).name}" for file in config.data.file)
    about = (
        f"{name}, taught by `pasta teach` of pasta-lm {version('pasta-lm')} to decide which parts "
        "of an answer are decoded at the same time.\nThe licence of the base applies. It learned "
        f"from its own answers{others}."
    )
    figures = report.partition("\n")[2].strip()  # the report has a title of its own
    parts = [
        *(front, f"# {name}, taught PASTA-LANG", about),
        "\n".join(f"- {line}" for line in _making(model, config, rows)),
        *("## Measured", figures),
        *("## Not measured", "\n".join(f"- {line}" for line in _not_measured(config))),
    ]
    return "\n\n".join(parts) + "\n"


def _has_adapter(config: TeachConfig) -> bool:
    return config.train.weights == "adapter" and config.preference is None


def _making(model: str, config: TeachConfig, rows: Mapping[str, Row]) -> Iterator[str]:
    train, two, answered = config.train, config.preference, rows["answers"]
    adapters = f"adapters of rank {train.rank} and the rows of the tag pieces"
    counts = [f"{count} {reason}" for reason, count in answered["counts"].items()]
    hours = sum(float(row["wall_s"]) for row in rows.values()) / 3600
    yield f"**Base**: {model}."
    yield (
        f"**Trained**: {'all weights' if train.weights == 'all' else adapters}; {train.dtype}, "
        f"positions `{train.positions}`, join `{train.join}`."
    )
    yield f"**Own answers**: {answered['num_answers']} answers of the base: {', '.join(counts)}."
    yield f"**Annotation**: `{config.annotation.annotator}`; nobody has read the annotated answers."
    yield (
        f"**Stage one**: {train.passes} passes of at most {config.data.max_tokens} tokens, and as "
        "many for the sequential baseline on the same answers without tags."
    )
    rounds = "none" if two is None else f"{two.rounds} rounds, judged by {two.judge.model}"
    yield f"**Stage two**: {rounds}."
    yield f"**Time**: {hours:.2f} hours."


def _not_measured(config: TeachConfig) -> Iterator[str]:
    yield "quality by a judge: no answer was compared by a judge or by a person"
    if config.measures.reader is None:
        yield "quality under another model: no other model read the answers"
    if config.measures.ifeval is None:
        yield "instructions that can be checked (IFEval)"
    if not config.measures.num_timed:
        yield "speed: no prompt was timed"
    yield "facts, safety and bias: the base's, and nothing was done about them"
