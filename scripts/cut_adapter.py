"""Make an adapter of a model with all weights trained: ``cut_adapter.py BASE TAUGHT OUT``.

Prints, for each kind of weights, how far training moved it and how much of that the adapter keeps.
The adapter can be trained on: ``lora.start`` of a recipe. Needs no GPU; some minutes for 135M.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from pasta_lm.cli.terminal import silence_libraries
from pasta_lm.engines.local.loading import tag_pieces
from pasta_lm.errors import PastaError, UsageError
from pasta_lm.learn.train.adapters import cut_difference, place_of
from pasta_lm.models.adapter import reference_to, save_adapter
from pasta_lm.models.folder import add_pieces, read_pasta_config
from pasta_lm.models.pretrained import read_pretrained

PLACES = ("package", "hub-id", "revision", "file")


def main() -> None:
    """Read two models, write the adapter, print what it keeps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base", help="the model before training, as in model.base")
    parser.add_argument("taught", type=Path, help="the model folder that training wrote")
    parser.add_argument("out", type=Path, help="the adapter folder to write")
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "int8"), default="bfloat16")
    for place in PLACES:
        parser.add_argument(
            f"--{place}", help=f"{place} of the base, for those who load the adapter"
        )
    args = parser.parse_args()
    places = {key: getattr(args, key.replace("-", "_")) for key in PLACES}
    named = {key.replace("-", "_"): value for key, value in places.items() if value is not None}
    silence_libraries()
    try:
        cut(args, named or place_of(args.base))
    except PastaError as exc:
        parser.exit(exc.exit_code, f"{exc}\n")


def cut(args: argparse.Namespace, places: dict[str, str]) -> None:
    """Cut, save and report."""
    config = read_pasta_config(args.taught)
    if config is None:
        raise UsageError(f"{args.taught} has no pasta_config.json: it is no trained model folder")
    base, tokenizer = read_pretrained(args.base, torch.float32)
    reference = reference_to(base, tokenizer, **places)
    add_pieces(base, tokenizer)
    if tag_pieces(tokenizer) != config.piece_ids:
        raise UsageError(f"{args.taught} has other token ids for the tag pieces than {args.base}")
    taught, _ = read_pretrained(args.taught, torch.float32)
    found = cut_difference(base, taught, config.piece_ids, args.rank)
    save_adapter(
        args.out,
        found.adapter,
        base=reference,
        config=config,
        dtype=getattr(torch, args.dtype),
    )
    print(f"{'weights':<28}{'moved':>10}{'kept':>8}")
    for name, change in found.changes.items():
        print(f"{name:<28}{change.relative:>10.2%}{change.kept:>8.1%}")
    size = sum(file.stat().st_size for file in args.out.iterdir())
    print(f"{args.out}: rank {args.rank}, {args.dtype}, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
