"""Checks of an answer's text: repetition, and IFEval's instructions.

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
READINGS = ("strict", "loose")
"""Of an answer as it is, or also without its first line, its last line or asterisks."""


def repetition(text: str) -> float:
    """Return the share of a text's 4-grams of words that occurred before; case does not count."""
    words = WORD.findall(text.casefold())
    grams = [tuple(words[start : start + GRAM]) for start in range(len(words) - GRAM + 1)]
    return (len(grams) - len(set(grams))) / max(len(grams), 1)


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
