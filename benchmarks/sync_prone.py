"""Write a model whose answers have many syncs, to compare engines on the join ``recompute``.

    PYTHONPATH=. python benchmarks/sync_prone.py MODEL OUT [--factor 1.3]

MODEL is a folder of ``pasta export --merged``. The row of ``<sync/>`` is made longer, in the tied
embedding or in the last layer. The answers mean nothing any more; their tokens are as exact as any.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from pasta_lm.language.tags import SYNC
from pasta_lm.models.folder import read_pasta_config


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--factor", type=float, default=1.3)
    args = parser.parse_args()
    config = read_pasta_config(args.model)
    assert config is not None
    shutil.copytree(args.model, args.out)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype="auto")
    with torch.no_grad():
        model.get_output_embeddings().weight[config.piece_ids[SYNC]] *= args.factor
    model.save_pretrained(args.out)


if __name__ == "__main__":
    main()
