"""Checks of an answer's text: repetition, items asked for and given, IFEval's instructions.

IFEval's answers are checked by ``lm_eval``; where NLTK's data are missing, sentences are cut by its
untrained Punkt.

Source: Zhou et al. 2023, "Instruction-Following Evaluation for Large Language Models", arXiv
2311.07911.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import cast
from unittest.mock import patch

from pasta_lm.errors import InputError, MissingExtraError
from pasta_lm.journal import Row
from pasta_lm.measure.table import Interval, mean, ratio

WORD = re.compile(r"\w+")
GRAM = 4  # words in a row that count as repeated
_NAMES = "two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
NUMBERS = dict(zip(_NAMES.split("|"), range(2, 13), strict=True)) | {"fifteen": 15, "twenty": 20}
MAX_ITEMS = 30
ITEMS = (
    "tips|ways|ideas|reasons|examples|facts|steps|questions|names|things|items|books|novels|"
    "movies|films|songs|benefits|advantages|disadvantages|drawbacks|pros|cons|recipes|"
    "suggestions|points|titles|headlines|slogans|taglines|jokes|riddles|quotes|activities|"
    "strategies|methods|techniques|exercises|countries|cities|places|animals|foods|dishes|"
    "meals|rules|principles|factors|features|topics|synonyms|antonyms|adjectives|verbs|nouns|"
    "rhymes|haikus|poems|emails|messages|captions|tweets|hashtags|puns|bullets|options|"
    "alternatives|differences|similarities|types|kinds|inventions|hobbies|games|gifts|snacks|"
    "skills|risks|goals|habits|mistakes|myths"
)
UNITS = "words|sentences|lines|verses|paragraphs|pages|minutes|hours|days|weeks"
"""What a number may count instead: "two paragraphs about tips" asks for no two tips."""
ASKED = re.compile(
    rf"\b({'|'.join(NUMBERS)}|\d{{1,2}})\s+(?:(?!{UNITS})[\w'’-]+\s+){{0,2}}?(?:{ITEMS})\b",
    re.IGNORECASE,
)
"""A number, at most two words, and a noun of things that are listed."""
NUMBERED = re.compile(r"^(\s*)(?:\*\*)?\(?\d{1,3}[.):]\s*(?=\S)")
BULLET = re.compile(r"^(\s*)[-*+•–]\s+(?=\S)")
BOLD = re.compile(r"^()(?:\*\*|#+\s)")
SENTENCE_END = re.compile(r"[.!?]+(?=\s|$)")
READINGS = ("strict", "loose")
"""Of an answer as it is, or also without its first line, its last line or asterisks."""


def repetition(text: str) -> float:
    """Return the share of a text's 4-grams of words that occurred before; case does not count."""
    words = WORD.findall(text.casefold())
    grams = [tuple(words[start : start + GRAM]) for start in range(len(words) - GRAM + 1)]
    return (len(grams) - len(set(grams))) / max(len(grams), 1)


def items_asked(prompt: str) -> int | None:
    """Return how many items a prompt asks for, as in "five tips"; None if it does not say.

    A prompt that names several numbers of things is left out: they may belong together.
    """
    numbers = ASKED.findall(prompt)
    if len(numbers) != 1:
        return None
    value = NUMBERS.get(numbers[0].lower()) or int(numbers[0])
    return value if 2 <= value <= MAX_ITEMS else None


def items_given(text: str) -> int:
    """Return how many different items an answer lists.

    The first of these of which there are two or more: numbered lines, bullets, lines that begin
    in bold or are headings, lines; else sentences. Of nested lists the outermost counts, and lines
    that end in a colon introduce others.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    for marker in (NUMBERED, BULLET, BOLD):
        marked = [(len(match[1]), line) for line in lines if (match := marker.match(line))]
        smallest = min(marked, default=(0, ""))[0]
        items = [_item(line) for indent, line in marked if indent == smallest]
        if len(items) > 1:
            return len(set(items))
    rest = {_item(line) for line in lines if not line.rstrip().endswith(":")}
    return len(rest) if len(rest) > 1 else len(SENTENCE_END.findall(text))


def _item(line: str) -> tuple[str, ...]:
    return tuple(WORD.findall(NUMBERED.sub("", BULLET.sub("", line)).casefold()))


def coverage(prompt_items: int, text: str) -> float:
    """Return the share of the items asked for that an answer gives; more than enough is 1."""
    return min(items_given(text), prompt_items) / prompt_items


@cache
def checkers() -> ModuleType:
    """Import IFEval's checkers without the rest of lm_eval, and without a download."""
    try:
        import langdetect
        import lm_eval
        import nltk

        # The package of all tasks imports metrics and data sets that IFEval does not need.
        tasks = ModuleType("lm_eval.tasks")
        tasks.__path__ = [str(Path(lm_eval.__path__[0]) / "tasks")]
        offline = patch.object(nltk, "download", lambda *_, **__: False)
        alone = patch.dict(sys.modules, {"lm_eval.tasks": tasks})
        with offline, alone, redirect_stdout(sys.stderr):  # it prints that it downloads
            from lm_eval.tasks.ifeval import instructions_util, utils
    except ImportError as exc:
        raise MissingExtraError(f"IFEval's checkers (module {exc.name})", "ifeval") from exc
    langdetect.DetectorFactory.seed = 0  # otherwise the language of a short text is drawn
    try:
        nltk.data.find("tokenizers/punkt_tab")
    except LookupError:
        punkt = nltk.tokenize.punkt.PunktSentenceTokenizer()
        instructions_util._get_sentence_tokenizer = lambda: punkt
        nltk.word_tokenize = partial(nltk.word_tokenize, preserve_line=True)
    return cast(ModuleType, utils)


def check_ifeval(prompt: Row, text: str) -> Row:
    """Return by reading which instructions of a prompt an answer follows."""
    try:
        result = checkers().process_results({"key": 0, **prompt}, [text])
    except KeyError as exc:
        raise InputError(f"lm_eval has no checker for {exc}") from exc
    return {key: list(result[f"inst_level_{key}_acc"]) for key in READINGS}


def ifeval_figures(pairs: Sequence[tuple[Row, Row]]) -> dict[str, Interval | None]:
    """Return accuracies of two systems and their difference, paired by prompt.

    Prompt-level: all instructions of a prompt are followed. Instruction-level: over all
    instructions; its interval too is over prompts.
    """
    figures: dict[str, Interval | None] = {}
    for key in READINGS:
        flags = [(ours[key], base[key]) for ours, base in pairs]
        sizes = [len(ours) for ours, _ in flags]
        # By the ending of the keys: ours, the baseline's, the difference.
        for end, a, b in (("", 1, 0), ("_baseline", 0, 1), ("_difference", 1, -1)):
            prompts = [a * all(ours) + b * all(base) for ours, base in flags]
            instructions = [a * sum(ours) + b * sum(base) for ours, base in flags]
            figures[f"prompt_{key}{end}"] = mean(prompts)
            figures[f"instruction_{key}{end}"] = ratio(instructions, sizes)
    return figures
