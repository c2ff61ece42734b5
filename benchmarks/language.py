"""Report how long reading 10 MB takes, for ordinary and for hostile text, whole and in pieces.

python benchmarks/language.py [--megabytes 10]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from pasta_lm.language import Lexer, check, parse

PIECE = 100  # characters fed at a time
ANSWER = (
    "Here is what I would do, and why it matters to you.\n" * 8
    + '<promise topic="the first step" tokens="6"/><async>'
    + "Begin with what you know; write it down, word by word. " * 5
    + "</async>, <sync/>then "
)
TEXTS = {
    "an annotated answer": ANSWER,
    "text without tags": "Here is what I would do, and why it matters to you.\n",
    "only syncs": "<sync/>",
    "only <": "<",
    "one endless tag": "",
    "broken tags": '<promise topic="',
    "one endless entity": "amp;",
    "open quotes": "<async ' >",
}
BEGINNINGS = {"one endless tag": '<promise topic="', "one endless entity": "&"}


def build(name: str, num_characters: int) -> str:
    """Return a text of one kind."""
    unit = TEXTS[name] or "a"
    return (BEGINNINGS.get(name, "") + unit * (num_characters // len(unit) + 1))[:num_characters]


def seconds_to_lex(text: str, size: int) -> float:
    """Return how long the lexer takes when the text comes in pieces of one size."""
    lexer = Lexer()
    start = time.perf_counter()
    for at in range(0, len(text), size):
        lexer.feed(text[at : at + size])
    lexer.close()
    return time.perf_counter() - start


def seconds_to_parse_and_check(num_characters: int) -> tuple[float, float]:
    """Return how long a valid text of annotated answers takes to parse, and to check."""
    text = ANSWER * (num_characters // len(ANSWER))
    start = time.perf_counter()
    parse(text)
    middle = time.perf_counter()
    check(text)
    return middle - start, time.perf_counter() - middle


def main() -> None:
    """Print a table: kind of text, seconds in pieces, seconds as a whole."""
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--megabytes", type=float, default=10)
    num_characters = int(arguments.parse_args().megabytes * 1_000_000)
    print(f"| lexing {num_characters:,} characters | in pieces of {PIECE}, s | whole, s |")
    print("|---|--:|--:|")
    for name in TEXTS:
        text = build(name, num_characters)
        pieces, whole = seconds_to_lex(text, PIECE), seconds_to_lex(text, len(text))
        print(f"| {name} | {pieces:.2f} | {whole:.2f} |", flush=True)
    parsed, checked = seconds_to_parse_and_check(num_characters)
    print(f"\nannotated answers: parse {parsed:.2f} s, check {checked:.2f} s")


if __name__ == "__main__":
    main()
