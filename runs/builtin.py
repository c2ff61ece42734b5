"""Put the built-in model and its twin into the package, and their base beside the recipes.

``python runs/builtin.py build/laptop`` after ``runs/laptop.sh``; results are read from there, and
stand on the cards. A model of stage two is named with its recipe and its results: ``--pasta
build/paper/seed-0/pasta-bon-4/round-2/model --recipe pasta-bon-4 --results FILE``.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from laptop_tables import cell

ROOT = Path(__file__).parents[1]
MODELS = ROOT / "src" / "pasta_lm" / "models"
BASE = "base-last"
FILES = (
    "model.safetensors",
    "config.json",
    "generation_config.json",
    "pasta_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)
MAX_BYTES = 12_000_000
FIGURES = (
    ("quality", "grade"),
    ("fork_precision", "fork precision"),
    ("fork_recall", "fork recall"),
    ("pair_accuracy", "minimal pairs right"),
    ("pairs_told_apart", "minimal pairs told apart"),
    ("theoretical_speedup", "theoretical speedup"),
    ("realised_speedup", "realised speedup"),
    ("well_formed", "well formed"),
)
CARD = """---
license: apache-2.0
language: en
library_name: pasta-lm
tags: [pasta-lang, parallel-decoding, demonstration]
---

# {name}

{what}
It is a small demonstration model: it knows the tasks of `pasta examples` and nothing else, in
English, with at most eight records. Asked anything else it answers nonsense, in good form.
It often copies a name or adds a number wrongly, and of families that it was not trained on it
answers none: the figures below, and the log of the project, say how often and why.

- **Architecture**: Llama, {num_parameters:,} parameters, {layers} layers of width {width}, tied
  embeddings, byte-level BPE of {vocabulary} pieces (single digits, tag pieces of PASTA-LANG).
  bfloat16, {num_bytes:,} bytes.
- **Data**: prompts and answers made by `pasta_lm.tasks`, split `train`, and nothing else. No text
  of people, no other model's text.
- **Training**: from random weights, `runs/laptop.sh` (in `runs/recipes`: {recipes}), seed 0,
  commit {commit}{remark}, {machine}.
- **Licence**: Apache-2.0.

## Measured

{measured}
"""
MEASURED = """{table}

Speedups are against the sequential answers of `builtin-sequential`, geometric means over all
prompts, those without any gain too; kind: generated. Definitions: `docs/evaluation.md`; all
figures: `docs/results.md`."""
NOT_MEASURED = """Nothing by itself. The cards of `builtin-sequential`, which is this model after
`baseline.toml`, and of `builtin`, after `pasta-gold.toml`, have figures."""
WHAT = {
    "builtin": "The model that comes with pasta-lm. It writes its own promises, blocks and syncs.",
    "builtin-sequential": "The sequential twin of the built-in model of pasta-lm: the same base, "
    "data and budget, tags stripped.",
    "base": "The base of the built-in model of pasta-lm: every finetuning of `runs/laptop.sh` and "
    "`runs/paper-small.sh` begins with it. It has met no tag.",
}


def install(source: Path, recipe: str, target: Path, measured: str, remark: str) -> None:
    """Copy a model folder to another and write its card.

    Args:
        source: Of the model that a recipe made.
        recipe: Its name.
        target: Its last part is the model's name.
        measured: What the card says of figures.
        remark: What a reader should know of the commit.
    """
    name = target.name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for file in FILES:
        shutil.copyfile(source / file, target / file)
    num_bytes = (target / "model.safetensors").stat().st_size
    if num_bytes > MAX_BYTES:
        sys.exit(f"{name}: {num_bytes:,} bytes of weights, at most {MAX_BYTES:,} may be shipped")
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    card = CARD.format(
        name=name,
        what=WHAT[name],
        num_parameters=num_bytes // 2,
        layers=config["num_hidden_layers"],
        width=config["hidden_size"],
        vocabulary=config["vocab_size"],
        num_bytes=num_bytes,
        recipes=", then ".join(f"`{step}.toml`" for step in _steps(recipe)),
        commit=_commit(),
        remark=f" ({remark})" if remark else "",
        machine=f"{platform.machine()} CPU",
        measured=measured,
    )
    (target / "README.md").write_text(card, encoding="utf-8")
    print(f"{target}: {num_bytes:,} bytes")


def _steps(recipe: str) -> list[str]:
    """Return the recipes that lead to one, itself last, by the base that each names."""
    text = (ROOT / "runs" / "recipes" / f"{recipe}.toml").read_text(encoding="utf-8")
    base = tomllib.loads(text)["model"].get("base")
    return [*(_steps(Path(base).parent.name) if base else ()), recipe]


def table(report: dict[str, Any], strategy: str) -> str:
    """Return the card's table of one strategy, trained families beside held-out ones."""
    figures = report["strategies"][strategy]
    held_out = figures["held_out"]
    rows = [
        f"Split `{report['split']}`, {report['num_prompts']} prompts of 21 families, and "
        f"{held_out['num_prompts']} of 4 families that no training saw; 95 % intervals.\n",
        "| | trained families | held-out families |",
        "|---|---|---|",
    ]
    for key, label in FIGURES:
        if figures.get(key) is not None:
            rows.append(f"| {label} | {cell(figures[key])} | {cell(held_out.get(key))} |")
    return "\n".join(rows)


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()


def main() -> None:
    """Install the models of a folder that ``runs/laptop.sh`` made."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("made", type=Path, help="where runs/laptop.sh made them")
    parser.add_argument("--pasta", type=Path, help="the built-in model; that of pasta-gold")
    parser.add_argument("--recipe", default="pasta-gold", help="that made it")
    parser.add_argument("--results", default="pasta-gold-test.json", help="of it, or a path")
    parser.add_argument("--remark", default="", help="about the commit, for the cards")
    typed = parser.parse_args()
    file = typed.made / "results" / typed.results  # a path with a root is itself
    report = json.loads((file if file.exists() else Path(typed.results)).read_text("utf-8"))
    ours = typed.pasta or typed.made / typed.recipe / "model"
    for name, recipe, folder, strategy in (
        ("builtin", typed.recipe, ours, "pasta"),
        ("builtin-sequential", "baseline", typed.made / "baseline" / "model", "sequential"),
    ):
        measured = MEASURED.format(table=table(report, strategy))
        install(folder, recipe, MODELS / name, measured, typed.remark)
    base = typed.made / BASE / "model"
    install(base, BASE, ROOT / "runs" / "base", NOT_MEASURED, typed.remark)


if __name__ == "__main__":
    main()
