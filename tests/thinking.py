"""Tiny models that say what a test wrote, with the recorded chat templates of models that think.

The engine, its masks and limits are real; only the logits are overruled.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import torch
from tokenizers import AddedToken
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from pasta_lm.engines.live_thread import LiveThread
from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.local.loading import LoadedModel
from pasta_lm.engines.passes.sampling import Choice
from pasta_lm.engines.response import Response
from pasta_lm.language.tags import PIECES
from pasta_lm.models.pieces import tag_pieces
from pasta_lm.models.vocabulary import Vocabulary
from pasta_lm.strategies.model import Pasta
from tests.small_tokenizers import add_markers, byte_level
from tests.tiny import random_llama

TEMPLATES = Path(__file__).with_name("templates")
FAVOUR = 1e4  # a logit that every legal token with it wins by
ADDED = {
    "qwen3": ("<|im_start|>", "<|im_end|>"),
    "smollm3": ("<|im_start|>", "<|im_end|>"),
    "deepseek-r1": ("<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
    "granite-3.3": ("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"),
    "gpt-oss": ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>"),
}
"""The special tokens of each family, its end-of-text last."""
HARMONY = "<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"
WRITTEN = {  # what the model writes, in front of its answer
    "qwen3": ("<think>\n", "\n</think>\n\n"),
    "smollm3": ("<think>\n", "\n</think>\n"),
    "deepseek-r1": ("", "\n</think>\n\n"),
    "granite-3.3": ("<think>", "</think>"),
    "gpt-oss": HARMONY,
}


@cache
def tokenizer(name: str) -> PreTrainedTokenizerFast:
    """Return a small tokenizer with the special tokens and the chat template of a family."""
    words = byte_level()
    words.add_tokens([AddedToken(t, special=True, normalized=False) for t in ADDED[name]])
    marks = {"gpt-oss": (), "granite-3.3": (">a", "> a")}.get(name, ("<think>", "</think>"))
    words.add_tokens([AddedToken(t, normalized=False) for t in marks])
    words.eos_token = ADDED[name][-1]
    words.chat_template = (TEMPLATES / f"{name}.jinja").read_text("utf-8")
    add_markers(words, PIECES)
    return words


def vocabulary(name: str, *, is_taught: bool = True) -> Vocabulary:
    words = tokenizer(name)
    return Vocabulary(words, tag_pieces(words) if is_taught else None)


def ids_of(name: str, text: str) -> list[int]:
    return list(tokenizer(name).backend_tokenizer.encode(text, add_special_tokens=False).ids)


def rendered(name: str, ids: list[int]) -> str:
    return tokenizer(name).backend_tokenizer.decode(ids, skip_special_tokens=False)


def saying(name: str, main: str, *blocks: str, is_taught: bool = True, **settings: bool) -> Pasta:
    """Return a model whose threads say these texts, as far as the tokens are legal, and end."""
    words = tokenizer(name)
    scripts = {(): ids_of(name, main)}
    scripts |= {(number,): ids_of(name, text) for number, text in enumerate(blocks, start=1)}
    ends = {True: words.eos_token_id, False: words.convert_tokens_to_ids("</async>")}
    asked: Counter[tuple[Response | int, ...]] = Counter()

    def steer(response: Response, live: LiveThread, choice: Choice, logits_V: Tensor) -> None:
        path, number = live.thread.path, live.thread.num_tokens - live.thread.num_prefix
        place = (response, *path, live.thread.num_tokens)  # not its id, which another may get
        number, asked[place] = number + asked[place], asked[place] + 1  # rows of guesses follow
        script = scripts.get(path, [])
        with torch.inference_mode():
            logits_V[script[number] if number < len(script) else ends[path == ()]] += FAVOUR

    own = vocabulary(name, is_taught=is_taught)
    loaded = LoadedModel(random_llama(words), own, name, frozenset({words.eos_token_id}))
    return Pasta(TorchEngine(loaded, pool_tokens=8192, on_logits=steer, **settings))
