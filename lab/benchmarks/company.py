"""Does an answer depend on company or on a cached prefix? Shares of answers that differ, by dtype.

    python lab/benchmarks/company.py [--model builtin] [--dtypes float32,bfloat16,int8] [--limit 24]

Greedy answers of the instructions in ``corpora/instructions``, with a system turn before each so
that a prefix is worth caching: alone, then eight at a time, then again behind their cached prompts.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from itertools import islice
from pathlib import Path

from pasta_lm import Pasta

INSTRUCTIONS = Path(__file__).parents[2] / "corpora/instructions/instructions.jsonl"
SYSTEM = "You are a careful assistant. Answer in plain words, and keep to what was asked for."
MAX_TOKENS = 120


def shares(model: str, dtype: str, prompts: list[str]) -> dict[str, float]:
    """Return the shares of answers that differ from the same answer alone and uncached."""
    chats = [
        [{"role": "system", "content": SYSTEM}, {"role": "user", "content": prompt}]
        for prompt in prompts
    ]
    load = partial(Pasta.from_pretrained, model, dtype=dtype, device="cpu", pool_tokens=8192)
    plain = load()
    alone = [plain.generate(chat, max_tokens=MAX_TOKENS).text for chat in chats]
    groups = [chats[start : start + 8] for start in range(0, len(chats), 8)]
    both = (plain.generate(group, max_tokens=MAX_TOKENS) for group in groups)
    together = [answer.text for answers in both for answer in answers]
    del plain
    caching = load(shares_prefixes=True)
    first = caching.generate(chats[0], max_tokens=MAX_TOKENS)
    cached = [caching.generate(chat, max_tokens=MAX_TOKENS).text for chat in chats]
    again = [caching.generate(chat, max_tokens=MAX_TOKENS).text for chat in chats]
    assert first.text == alone[0]

    ways = {"among eight": together, "behind a cached beginning": cached}
    ways["behind the prompt"] = again
    pairs = {way: list(zip(alone, texts, strict=True)) for way, texts in ways.items()}
    return {way: sum(a != b for a, b in both) / len(alone) for way, both in pairs.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="builtin")
    parser.add_argument("--dtypes", default="float32,bfloat16,int8")
    parser.add_argument("--limit", type=int, default=24)
    options = parser.parse_args()
    with INSTRUCTIONS.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in islice(lines, 0, None, 40)][: options.limit]
    prompts = [row["instruction"] for row in rows]
    for dtype in options.dtypes.split(","):
        print(json.dumps({"dtype": dtype, **shares(options.model, dtype, prompts)}), flush=True)


if __name__ == "__main__":
    main()
