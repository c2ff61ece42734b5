"""The likelihood judge: no gain beyond the answer of the baseline, and guards against tricks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pasta_lm.errors import RequestError
from pasta_lm.learn.judge.judge import Comparison, Winner, both_orders
from pasta_lm.learn.judge.likelihood import LikelihoodJudge, guards

PROMPT = "Give me three tips for sleep."
OWN = (
    "1. Keep the bedroom dark and cool all night.\n"
    "2. Go to bed at the same hour every day.\n"
    "3. Leave the telephone in another room."
)


class Scripted:
    """A reader that finds each word as likely as a script says."""

    def __init__(self, nats: dict[str, float], default: float = 2.0) -> None:
        self.nats, self.default = nats, default

    def answer_nats(self, prompt: str, answer: str) -> Sequence[float]:
        if "UNREADABLE" in answer:
            raise RequestError("does not fit")
        return [self.nats.get(answer, self.default)] * len(answer.split())


def judge(*scripts: dict[str, float], own: str | None = OWN) -> LikelihoodJudge:
    readers = {f"reader {number}": Scripted(one) for number, one in enumerate(scripts or ({},))}
    known = {} if own is None else {"p": own}
    return LikelihoodJudge(list(readers), readers.__getitem__, known)


def winner(one: LikelihoodJudge, first: str, second: str) -> Winner | None:
    forth, back = one.compare(both_orders("p", PROMPT, first, second))
    if forth is None or back is None:
        return None
    swapped = {Winner.FIRST: Winner.SECOND, Winner.SECOND: Winner.FIRST, Winner.TIE: Winner.TIE}
    assert back.winner is swapped[forth.winner]
    assert back.confidence == pytest.approx(forth.confidence)
    return forth.winner


OTHER = OWN.replace("dark", "quiet")


@pytest.mark.parametrize(
    ("nats", "expected"),
    [
        (1.0, Winner.TIE),  # likelier than the baseline's own: clipped
        (2.0, Winner.TIE),
        (2.5, Winner.SECOND),
    ],
)
def test_nothing_is_gained_beyond_the_baselines_own_answer(nats: float, expected: Winner) -> None:
    assert winner(judge({OTHER: nats}), OTHER, OWN) is expected


def test_without_the_baselines_answer_the_likelier_one_wins() -> None:
    assert winner(judge({OTHER: 1.0}, own=None), OTHER, OWN) is Winner.FIRST


LINES = OWN.splitlines()
DAMAGES = {
    "doubled": "\n".join([LINES[0], *LINES]),
    "doubled at the end": OWN + "\n" + LINES[1],
    "dropped": "\n".join(LINES[:2]),
    "cut": OWN[: len(OWN) // 2],
    "said in two words": "Sleep well.",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("own", [OWN, None], ids=["own answer known", "not known"])
def test_damage_that_likelihood_rewards_loses(damage: str, own: str | None) -> None:
    assert winner(judge({damage: 1.6}, own=own), OWN, damage) is Winner.FIRST


def plain(has_guards: bool, *names: str) -> LikelihoodJudge:
    reader = Scripted({one: 1.6 for one in DAMAGES.values()})
    return LikelihoodJudge(names, lambda _: reader, has_guards=has_guards)


@pytest.mark.parametrize(
    ("made", "name", "expected"),
    [
        (plain(True, "m", "n"), "likelihood under m and n", Winner.FIRST),
        (plain(False, "m"), "likelihood under m, no guards", Winner.SECOND),
        (plain(True), "guards alone", Winner.FIRST),
    ],
)
def test_guards_and_readers_are_checked_apart(
    made: LikelihoodJudge, name: str, expected: Winner
) -> None:
    assert made.name == name
    assert {winner(made, OWN, damage) for damage in DAMAGES.values()} == {expected}


def test_guards_alone_find_what_damages_nothing_they_count_equal() -> None:
    assert winner(plain(True), OWN, OTHER) is Winner.TIE


def test_an_equal_answer_loses_nothing_to_the_guards() -> None:
    assert sum(guards(PROMPT, OWN, OWN)) == 0
    assert sum(guards(PROMPT, OWN + " Read a dull book.", OWN)) == 0


@pytest.mark.parametrize(
    ("damage", "guard"),
    [("doubled", "repetition"), ("dropped", "missing"), ("cut", "shortness")],
)
def test_each_guard_sees_its_damage(damage: str, guard: str) -> None:
    assert getattr(guards(PROMPT, DAMAGES[damage], OWN), guard) > 0


def test_two_readers_count_alike() -> None:
    assert winner(judge({OTHER: 2.2}, {OTHER: 2.4}), OTHER, OWN) is Winner.SECOND
    # Each reader clips by itself: one that likes the answer does not make up for the other.
    assert winner(judge({OTHER: 0.5}, {OTHER: 2.4}), OTHER, OWN) is Winner.SECOND


def test_empty_and_unreadable_answers_break_nothing() -> None:
    made = judge()
    assert winner(made, "", OWN) is Winner.SECOND
    assert winner(made, "", " ") is Winner.TIE
    assert made.compare([Comparison("p", PROMPT, "UNREADABLE words", OWN)]) == [None]
    assert made.num_missing == 1
