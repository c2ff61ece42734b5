"""IFEval: whether an answer follows instructions that can be checked by rules.

The checkers are those of the package ``lm_eval``. Where NLTK's data are missing, sentences are cut
by its untrained Punkt, which touches two of the 25 kinds of instruction, of all systems alike.

Source: Zhou et al. 2023, "Instruction-Following Evaluation for Large Language Models", arXiv
2311.07911.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch

from pasta_lm.errors import InputError, MissingExtraError
from pasta_lm.measure.table import Interval, mean, ratio


class Followed(NamedTuple):
    """Which of a prompt's instructions an answer follows."""

    strict: list[bool]
    loose: list[bool]  # the same if the first line, the last line or asterisks may be left out


@cache
def checkers() -> Any:
    """Import the checkers without the rest of lm_eval, and without a download."""
    try:
        import langdetect
        import lm_eval
        import nltk

        # The package of all tasks imports metrics and data sets that IFEval does not need.
        tasks = ModuleType("lm_eval.tasks")
        tasks.__path__ = [str(Path(lm_eval.__path__[0]) / "tasks")]
        offline = patch.object(nltk, "download", lambda *_, **__: False)
        result = patch.dict(sys.modules, {"lm_eval.tasks": tasks})
        with offline, result, redirect_stdout(sys.stderr):  # it prints that it downloads
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
    return utils


def check(prompt: Mapping[str, Any], text: str) -> Followed:
    """Return which instructions of a prompt an answer follows."""
    try:
        result = checkers().process_results({"key": 0, **prompt}, [text])
    except KeyError as exc:
        raise InputError(f"lm_eval has no checker for {exc}") from exc
    return Followed(list(result["inst_level_strict_acc"]), list(result["inst_level_loose_acc"]))


def ifeval_figures(
    ours: Sequence[Followed], base: Sequence[Followed]
) -> dict[str, Interval | int | None]:
    """Return accuracies of two systems and their difference, paired by prompt.

    SetPrompt-level: all instructions of a prompt are followed. Instruction-level: over all
    instructions; its interval too is over prompts.
    """
    result: dict[str, Interval | int | None] = {"num_prompts": len(ours)}
    for key in Followed._fields:
        flags = [[getattr(item, key) for item in side] for side in (ours, base)]
        sizes = [len(item) for item in flags[0]]
        for end, values in _sides(*([all(item) for item in side] for side in flags)):
            result[f"prompt_{key}{end}"] = mean(values)
        for end, values in _sides(*([sum(item) for item in side] for side in flags)):
            result[f"instruction_{key}{end}"] = ratio(values, sizes)
    return result


def _sides(ours: Sequence[int], base: Sequence[int]) -> Iterator[tuple[str, Sequence[int]]]:
    yield "", ours
    yield "_baseline", base
    yield "_difference", [a - b for a, b in zip(ours, base, strict=True)]
