"""Comparing sampled answers finds no difference where there is none, and one where one is."""

from __future__ import annotations

from statistics import fmean
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.served_rollouts import Surprise, permuted, runs_of
from benchmarks.token_agreement import Choice

NUM_TOKENS = 4000


def drawn_from(temperature: float) -> Surprise:
    """Draw from one distribution and check against the one of temperature 1."""
    torch.manual_seed(0)
    found = Surprise()
    for logits in 2 * torch.randn(NUM_TOKENS, 20):
        probs = (logits / temperature).softmax(-1)
        found.add(logits, int(torch.multinomial(probs, 1)))
    return found


def test_tokens_that_a_model_drew_surprise_it_as_much_as_it_expects() -> None:
    assert drawn_from(1.0).num_tokens == NUM_TOKENS
    assert abs(drawn_from(1.0).z) < 3
    assert drawn_from(1.1).z > 5
    assert drawn_from(0.9).z < -5


def answers(*lengths: float) -> Any:
    return {
        f"q{at}": [SimpleNamespace(length=length + at) for length in lengths] for at in range(8)
    }


def test_a_difference_is_found_within_prompts_and_not_between_them() -> None:
    one = answers(1, 2, 3, 4)
    same, other = (
        permuted(one, two, lambda answer: answer.length, fmean)  # type: ignore[attr-defined]
        for two in (answers(4, 2, 1, 3), answers(4, 5, 6, 7))
    )
    assert same == {"local": 6.0, "server": 6.0, "p": 1.0}
    assert (other["local"], other["server"]) == (6.0, 9.0)
    assert other["p"] < 0.01


def test_choices_that_follow_each_other_are_checked_by_one_pass() -> None:
    found = {
        (0, 0): Choice((1, 2), 3),
        (0, 1): Choice((1, 2, 3), 4),
        (0, 2): Choice((1, 2, 8, 9, 3, 4), 5),  # behind a sync
        (1, 1): Choice((1, 2, 8), 9),
    }
    runs = [[choice.token for choice in run] for run in runs_of(found)]
    assert runs == [[3, 4], [5], [9]]


def test_main_goes_on_behind_a_block_in_its_own_run() -> None:
    found = {
        (0, 0): Choice((1,), 2),
        (1, 1): Choice((1, 2, 8), 9),  # a block that main promised
        (1, 2): Choice((1, 2, 8, 9), 10),
        (0, 1): Choice((1, 2), 3),
    }
    runs = [[choice.token for choice in run] for run in runs_of(found)]
    assert runs == [[2, 3], [9, 10]]
