"""Fit a judge without a language model to blind verdicts and planted damage, and cross-validate it.

``python scripts/fitted_judge.py RUN… --damage ANSWERS… --sets JSON``: each RUN is a folder of
``pasta evaluate instructions`` with ``blind_reading.jsonl``. The judge sees measures of two texts
(length, repetition, where they end, likeness to the prompt), and gradient-boosted trees weigh the
differences. A verdict on a pair comes from a fit that saw neither its prompt nor its RUN.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log1p
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from blind_reading import SHORTER, TIE, pairs_of, preferences, rows_of
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_extraction.text import TfidfVectorizer

from pasta_lab.evaluate.judge_pairs import DamageConfig, damaged_pairs
from pasta_lm.errors import PastaError
from pasta_lm.learn.judge.answer_text import WORD, items_asked, items_given, repetition
from pasta_lm.measure.intervals import as_dict, mean
from pasta_lm.measure.prompt_sets import SetFiles
from pasta_lm.models.annotated import read_records
from pasta_lm.strategies import pasta, sequential

READINGS = "blind_reading.jsonl"
NUM_FOLDS = 5
"""Of prompts."""
MIN_PASSAGE_WORDS = 3
ENDS = tuple(".!?:;)\"'`”*|,]}")
"""A line that ends in another character is cut, or a heading."""
NUMBER = re.compile(r"^\s*(?:\*\*)?(\d{1,2})[.)]\s", re.MULTILINE)
PASSAGE = re.compile(r"\n+|(?<=[.!?])\s+")


@dataclass(frozen=True)
class Labelled:
    """Two answers to a prompt, and how often the first one is preferred, from 0 to 1."""

    source: str
    """A RUN, or a file of answers with planted damage."""
    kind: str
    """``read``, or the kind of damage."""
    prompt: str
    first: str
    second: str
    first_wins: float

    @property
    def is_decided(self) -> bool:
        """Return whether readers prefer one of the two."""
        return self.first_wins != TIE


class Measured(NamedTuple):
    """Measures of one answer beside its prompt."""

    words: float
    """Log of one more than their number, like the two below."""
    different_words: float
    lines: float
    variety: float
    """Share of different words."""
    compressed: float
    """Length of the compressed text, as a share."""
    repeated_within: float
    """Share of 4-grams of words that stand in their line before."""
    repeated_between: float
    """Share of those in an earlier line only."""
    doubled: float
    """Share of passages, sentences or lines, that occur before."""
    ends_open: float
    """1 if the last line ends in a letter, else 0; so the other facts below."""
    ends_in_colon: float
    has_cut_line: float
    """Up to a third of the lines end in a letter."""
    skips_number: float
    """A numbered list leaves a number out."""
    doubles_number: float
    missing: float
    """Share of the items that the prompt asks for."""
    like_prompt: float
    """Cosine of tf-idf of letter 4-grams, answer and prompt."""
    least_likeness: float
    """Of a passage and all else, the prompt included."""
    mean_likeness: float


class Measures:
    """Measures answers.

    Args:
        texts: Where frequencies come from: no answer that is judged.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._vectors = TfidfVectorizer(analyzer="char_wb", ngram_range=(4, 4), sublinear_tf=True)
        self._vectors.fit(texts)

    def of(self, prompt: str, text: str) -> Measured:
        """Return the measures of one answer, which may be empty."""
        words = WORD.findall(text.casefold())
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        passages = [one for one in PASSAGE.split(text) if _num_words(one) >= MIN_PASSAGE_WORDS]
        different = {tuple(WORD.findall(one.casefold())) for one in passages}
        steps = [after - before for before, after in pairwise(map(int, NUMBER.findall(text)))]
        cut = [not line.endswith(ENDS) for line in lines if _num_words(line) > MIN_PASSAGE_WORDS]
        asked = items_asked(prompt)
        repeated = repetition(lines)
        encoded = text.encode()
        return Measured(
            log1p(len(words)),
            log1p(len(set(words))),
            log1p(len(lines)),
            variety=len(set(words)) / max(len(words), 1),
            compressed=len(zlib.compress(encoded)) / max(len(encoded), 1),
            repeated_within=repeated.within,
            repeated_between=repeated.between,
            doubled=1 - len(different) / max(len(passages), 1),
            ends_open=float(bool(lines) and not lines[-1].endswith(ENDS)),
            ends_in_colon=float(text.rstrip().endswith(":")),
            has_cut_line=float(0 < sum(cut) <= len(cut) // 3),
            skips_number=float(any(step > 1 for step in steps)),
            doubles_number=float(0 in steps),
            missing=max(asked - items_given(text), 0) / asked if asked else 0.0,
            **self._likeness(prompt, text, passages),
        )

    def _likeness(self, prompt: str, text: str, passages: Sequence[str]) -> dict[str, float]:
        vectors = self._vectors.transform([prompt, text, *passages]).toarray()
        asked, whole, each = vectors[0], vectors[1], vectors[2:]
        rest = each.sum(axis=0) - each + asked
        norms = np.maximum(np.linalg.norm(rest, axis=1), 1e-9)
        with_rest = (each * rest).sum(axis=1) / norms if len(each) else np.zeros(1)
        return {
            "like_prompt": float(asked @ whole),
            "least_likeness": float(with_rest.min()),
            "mean_likeness": float(with_rest.mean()),
        }


def _num_words(text: str) -> int:
    return len(WORD.findall(text))


def read_pairs(run: Path, files: SetFiles, limit: int) -> Iterator[Labelled]:
    """Yield the pairs of a run that blind readers have read; their mean is the label."""
    found = preferences(rows_of(run / READINGS))
    for one in pairs_of(run, files, limit):
        if one.id in found:
            texts = one.texts[pasta.NAME], one.texts[sequential.NAME]
            yield Labelled(run.name, "read", one.prompt, *texts, fmean(found[one.id]))


def planted_pairs(file: str, num_answers: int, seed: int) -> Iterator[Labelled]:
    """Yield answers of a file with their damaged copies, the undamaged one first."""
    config = DamageConfig(answers=(file,), num_answers=num_answers, seed=seed)
    for one in damaged_pairs(config).pairs:
        yield Labelled(file, one.kind, one.prompt, one.ours, one.theirs, 1.0)


def held_out_verdicts(
    pairs: Sequence[Labelled], differences: NDArray[Any], seed: int
) -> NDArray[Any]:
    """Return the probability that the first answer is better, by fits that did not see its like.

    Args:
        pairs: Of all sources.
        differences: ``[pairs, measures]``, first answer less second.
        seed: Of the folds of prompts.
    """
    prompts = sorted({one.prompt for one in pairs})
    order = np.random.default_rng(seed).permutation(len(prompts))
    fold = {prompts[at]: place % NUM_FOLDS for place, at in enumerate(order)}
    folds = np.array([fold[one.prompt] for one in pairs])
    runs = np.array([one.source if one.kind == "read" else "" for one in pairs])
    labels = np.array([one.first_wins for one in pairs])
    found = np.full(len(pairs), TIE)
    for number in range(NUM_FOLDS):
        for run in sorted(set(runs)):
            # Of planted damage the prompt alone is held out: it has no other models.
            other = np.ones(len(pairs), bool) if run == "" else runs != run
            asked = (folds == number) & (runs == run)
            model = _fitted(differences, labels, (folds != number) & other & (labels != TIE))
            # The mean over both orders: no place is preferred.
            one, swapped = (
                model.predict_proba(sign * differences[asked])[:, 1] for sign in (1, -1)
            )
            found[asked] = (one + 1 - swapped) / 2
    return found


def _fitted(
    differences: NDArray[Any], labels: NDArray[Any], chosen: NDArray[Any]
) -> HistGradientBoostingClassifier:
    """Fit on the chosen pairs in both orders; a pair weighs as much as its readers agree."""
    inputs, wins = differences[chosen], labels[chosen] > TIE
    weights = np.abs(labels[chosen] - TIE) / TIE
    model = HistGradientBoostingClassifier(
        max_iter=150, learning_rate=0.06, max_leaf_nodes=8, l2_regularization=5.0, random_state=0
    )
    return model.fit(
        np.concatenate([inputs, -inputs]),
        np.concatenate([wins, ~wins]),
        sample_weight=np.concatenate([weights, weights]),
    )


def figures(pairs: Sequence[Labelled], verdicts: NDArray[Any]) -> dict[str, Any]:
    """Return agreement with known verdicts by source and kind, and win rates of each RUN.

    Agreement is over decided pairs; the interval of a source's damage is over prompts.
    """
    found: dict[str, Any] = {}
    for source in dict.fromkeys(one.source for one in pairs):
        rows = [
            (one, said) for one, said in zip(pairs, verdicts, strict=True) if one.source == source
        ]
        entry: dict[str, Any] = {"num_pairs": len(rows), "agreement": _agreement(rows)}
        kinds = dict.fromkeys(one.kind for one, _ in rows)
        if "read" in kinds:
            shorter = [(one, float(len(one.first) < len(one.second))) for one, _ in rows]
            entry |= {
                SHORTER: _agreement(shorter),
                "win_rate": as_dict(mean([float(said > TIE) for _, said in rows])),
                "read_win_rate": as_dict(mean([one.first_wins for one, _ in rows])),
            }
        else:
            by_kind = {kind: [row for row in rows if row[0].kind == kind] for kind in kinds}
            entry["kinds"] = {kind: _agreement(some) for kind, some in by_kind.items()}
        found[source] = entry
    read = [row for row in zip(pairs, verdicts, strict=True) if row[0].kind == "read"]
    return found | {"read": {"num_pairs": len(read), "agreement": _agreement(read)}}


def _agreement(rows: Sequence[tuple[Labelled, float]]) -> dict[str, float] | None:
    """Return the share of decided pairs on which the winner is the known one, over prompts."""
    by_prompt: dict[str, list[float]] = {}
    for one, said in rows:
        if one.is_decided:
            same = float((said > TIE) == (one.first_wins > TIE))
            by_prompt.setdefault(one.prompt, []).append(same)
    return as_dict(mean([fmean(same) for same in by_prompt.values()])) if by_prompt else None


def main() -> int:
    """Print the figures as JSON; 1 if something is wrong with the files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("runs", type=Path, nargs="+", help=f"folders with {READINGS}")
    parser.add_argument("--damage", nargs="*", default=[], help="answers to damage (JSON lines)")
    parser.add_argument("--texts", default="corpora/own_answers/own_answers.jsonl")
    parser.add_argument("--sets", default="{}", help="JSON: the files of the prompt sets")
    parser.add_argument("--limit", type=int, default=80, help="prompts of each set")
    parser.add_argument("--answers", type=int, default=200, help="damaged answers of each file")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    try:
        measures = Measures([one.document.plain_text for one in read_records(Path(given.texts))])
        files = SetFiles(**json.loads(given.sets))
        pairs = [one for run in given.runs for one in read_pairs(run, files, given.limit)]
        pairs += [
            one for file in given.damage for one in planted_pairs(file, given.answers, given.seed)
        ]
        differences = np.array(
            [
                np.subtract(measures.of(one.prompt, one.first), measures.of(one.prompt, one.second))
                for one in pairs
            ]
        )
        print(
            json.dumps(figures(pairs, held_out_verdicts(pairs, differences, given.seed)), indent=1)
        )
    except (PastaError, OSError) as exc:
        print(f"fitted_judge.py: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
