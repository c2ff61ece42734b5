"""IFEval: whether an answer follows instructions that can be checked by rules.

The checkers are those of the package ``lm_eval``; nothing of it is copied. Where NLTK's data are
missing and cannot be had, sentences are cut by its untrained Punkt and words without cutting
sentences first. That touches two of the 25 kinds of instruction (numbers of sentences, words in
capitals), of all systems alike.

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
from pasta_lm.journal import read_objects
from pasta_lm.measure.intervals import Interval, mean, ratio

KEYS = {"prompt": str, "instruction_id_list": list, "kwargs": list}


class Verdict(NamedTuple):
    """Which of a prompt's instructions an answer follows."""

    strict: list[bool]
    loose: list[bool]
    """The same if the first line, the last line or asterisks may be left out."""


def read_prompts(path: Path) -> dict[str, Mapping[str, Any]]:
    """Read IFEval's prompts by key.

    Raises:
        InputError: the file cannot be read, or a row is no prompt of IFEval.
    """
    result: dict[str, Mapping[str, Any]] = {}
    for number, row in read_objects(path):
        for key, kind in KEYS.items():
            if not isinstance(row.get(key), kind):
                raise InputError(f"{path}:{number}: no {key!r}, as IFEval's prompts have it")
        result[str(row.get("key", number - 1))] = row
    return result


@cache
def _checkers() -> Any:
    """Import the checkers without the rest of lm_eval, and without a download.

    Raises:
        MissingExtraError: lm_eval or a module of its IFEval is not installed.
    """
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


def check_available() -> None:
    """Raise a MissingExtraError unless the checkers are installed."""
    _checkers()


def check(prompt: Mapping[str, Any], text: str) -> Verdict:
    """Return which instructions of a prompt an answer follows.

    Raises:
        MissingExtraError: the checkers are not installed.
        InputError: the prompt has an instruction that the checkers do not know.
    """
    try:
        result = _checkers().process_results({"key": 0, **prompt}, [text])
    except KeyError as exc:
        raise InputError(f"lm_eval has no checker for {exc}") from exc
    return Verdict(list(result["inst_level_strict_acc"]), list(result["inst_level_loose_acc"]))


def ifeval_figures(
    ours: Sequence[Verdict], base: Sequence[Verdict]
) -> dict[str, Interval | int | None]:
    """Return accuracies of two systems and their difference, paired by prompt.

    Prompt-level: all instructions of a prompt are followed. Instruction-level: over all
    instructions; its interval too is over prompts.
    """
    result: dict[str, Interval | int | None] = {"num_prompts": len(ours)}
    for key in Verdict._fields:
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
