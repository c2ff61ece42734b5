"""The inputs of ``runs/paper.sh --tiny``: a random Gemma with a tokenizer, answers, instructions.

The rows of the tags and of end-of-text are long, so that the model forks and ends by chance: its
samples must differ, and end, to be learned from.
"""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path

import torch
from transformers import GemmaConfig, GemmaForCausalLM

from pasta_lm.language.tags import PIECES
from pasta_lm.learn.data.annotated import Record, read_records
from tests.small_tokenizers import add_markers, byte_level
from tests.tiny import SIZES

ROOT = Path(__file__).parents[2]
STARTER = ROOT / "corpora" / "starter" / "starter.jsonl"
NUM_ANSWERS, NUM_INSTRUCTIONS = 24, 6
MAX_CHARACTERS = 900
MORE = {"intermediate_size": 64, "num_key_value_heads": 1, "head_dim": 16}
MORE |= {"max_position_embeddings": 4096}
TAG_SCALE, END_SCALE = 6.0, 6.0


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    short = (one for one in read_records(STARTER) if len(one.document.plain_text) < MAX_CHARACTERS)
    records = list(islice(short, NUM_ANSWERS + NUM_INSTRUCTIONS))
    answers, asked = records[:NUM_ANSWERS], records[NUM_ANSWERS:]
    write_rows(folder / "answers.jsonl", [answer_row(one) for one in answers])
    write_rows(folder / "instructions.jsonl", [{"instruction": one.prompt} for one in asked])
    write_model(folder / "model")


def answer_row(record: Record) -> dict[str, str]:
    return {"id": record.id, "prompt": record.prompt, "answer": record.document.plain_text}


def write_rows(path: Path, rows: list[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_model(folder: Path) -> None:
    """Write a random Gemma with a byte-level tokenizer that has the tag pieces."""
    tokenizer = byte_level()
    add_markers(tokenizer, PIECES)
    end = tokenizer.eos_token_id
    torch.manual_seed(0)
    ends = {"eos_token_id": end, "bos_token_id": end, "pad_token_id": None}  # padding has no row
    config = GemmaConfig(**{**SIZES, **MORE}, **ends, vocab_size=len(tokenizer))
    model = GemmaForCausalLM(config)
    with torch.no_grad():
        rows = model.get_output_embeddings().weight
        rows[tokenizer.convert_tokens_to_ids(list(PIECES))] *= TAG_SCALE
        rows[end] *= END_SCALE
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
