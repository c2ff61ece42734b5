"""A tiny random model whose answers can be used, and the smallest recipe that teaches it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from pasta_lm.journal import write_rows
from pasta_lm.learn.data.annotated import write_records
from pasta_lm.teaching import config as teaching
from tests.learn.train.recipes import records
from tests.small_tokenizers import byte_level
from tests.tiny import random_llama

CHAT = "{% for one in messages %}<|begin|>{{ one['content'] }}\n{% endfor %}<|begin|>"
THINKING = "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n"
THINKING = f"{CHAT}{THINKING}{{% else %}}<think>\n{{% endif %}}"
WORD_SCALE, END_SCALE = 3.0, 11.0
SUBJECTS = ("bread", "rain", "a bridge", "the moon", "tea", "a clock", "paper", "salt")
ASKED = ("What is {}?", "Name two uses of {}.", "Who made {}?", "Three facts about {}.")


def save_teachable(folder: Path, chat: str = CHAT) -> str:
    """Write a random model that says words and stops; return where."""
    tokenizer = byte_level()
    tokenizer.chat_template = chat
    texts = {n: tokenizer.decode([n]) for n in range(len(tokenizer))}
    words = [n for n, text in texts.items() if len(text) > 3 and text.strip(" ").isalpha()]
    model = random_llama(tokenizer, tie_word_embeddings=False)
    with torch.no_grad():
        output = model.get_output_embeddings().weight
        output[words] *= WORD_SCALE
        output[tokenizer.eos_token_id] *= END_SCALE
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def recipe(folder: Path, **train: Any) -> teaching.TeachConfig:
    """Return the smallest recipe; its data are written to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = [form.format(subject) for form in ASKED for subject in SUBJECTS]
    rows = [{"id": f"i{n:02}", "instruction": text} for n, text in enumerate(texts)]
    write_rows(folder / "instructions.jsonl", rows)
    write_records(folder / "mixed.jsonl", records(6))
    instructions = {"file": str(folder / "instructions.jsonl"), "num": 24, "num_held_out": 4}
    sampling = {"temperature": 1.0, "max_tokens": 24, "in_flight": 8}
    return teaching.TeachConfig(
        answers=teaching.AnswersConfig(**instructions, **sampling),  # type: ignore[arg-type]
        data=teaching.MixConfig(file=(str(folder / "mixed.jsonl"),), max_tokens=600),
        train=teaching.LearningConfig(**{"passes": 2, "rank": 2, "save_steps": 1, **train}),
        measures=teaching.MeasuresConfig(
            num_prompts=2, max_tokens=24, num_timed=1, num_unmasked=1, num_references=4
        ),
    )
