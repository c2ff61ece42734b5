from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from lab.tests.tasks.reading import NUM_PER_FAMILY, SHARED_BY_MISTAKE, every_wording, task_set
from pasta_lab.tasks import FAMILIES, Split, Task, make, training_families
from pasta_lab.tasks.draw import Wording, owns_value, owns_word, word_lists
from pasta_lab.tasks.registry import prompts_hash

ROOT = Path(__file__).parents[3]
OWNERS = (Split.TRAIN, Split.DEV, Split.TEST)
NUM_TASKS = 100
HYPOTHESES = (ROOT / "lab" / "hypotheses.md").read_text("utf-8")


def sentences(options: Iterable[Wording]) -> set[str]:
    return {side for option in options for side in option} - {SHARED_BY_MISTAKE}


ALL_WORDINGS = every_wording()


@pytest.mark.parametrize("name", ALL_WORDINGS)
def test_no_two_splits_share_a_wording_or_a_side_of_one(name: str) -> None:
    asked = ALL_WORDINGS[name]
    for one, other in itertools.combinations((asked.train, asked.dev, asked.test), 2):
        assert one
        assert other
        assert sentences(one).isdisjoint(sentences(other))


def test_no_held_out_wording_is_a_training_wording_of_another_place() -> None:
    trained = set().union(*(sentences(asked.train) for asked in ALL_WORDINGS.values()))
    for asked in ALL_WORDINGS.values():
        assert trained.isdisjoint(sentences(asked.test) | sentences(asked.dev))


@pytest.mark.parametrize("kind", word_lists())
def test_a_word_belongs_to_one_split_and_every_kind_has_training_and_test_words(kind: str) -> None:
    owners = {word: [s for s in OWNERS if owns_word(s, word)] for word in word_lists()[kind]}
    assert all(len(splits) == 1 for splits in owners.values())
    num_test, num_train = (
        sum(splits == [split] for splits in owners.values()) for split in (Split.TEST, Split.TRAIN)
    )
    assert num_train > num_test > 0


def test_a_number_belongs_to_one_split() -> None:
    for value in range(10, 1_000):
        assert sum(owns_value(split, value) for split in OWNERS) == 1


@pytest.fixture(scope="module")
def tasks() -> dict[tuple[str, str], list[Task]]:
    return {
        (family, split): [make(family, split, seed) for seed in range(NUM_TASKS)]
        for family in FAMILIES
        for split in ("train", "dev", "test")
    }


def test_training_and_test_prompts_draw_no_common_word(
    tasks: dict[tuple[str, str], list[Task]],
) -> None:
    drawn: dict[str, set[str]] = {"train": set(), "dev": set(), "test": set()}
    for (_, split), made in tasks.items():
        drawn[split].update(word.lower() for task in made for word in task.drawn)
    for one, other in itertools.combinations(drawn.values(), 2):
        assert one.isdisjoint(other)


@pytest.mark.parametrize("family", training_families())
def test_no_masked_test_prompt_is_a_masked_training_prompt(
    family: str, tasks: dict[tuple[str, str], list[Task]]
) -> None:
    trained = {masked(task) for task in tasks[family, "train"]}
    assert trained.isdisjoint(masked(task) for task in tasks[family, "test"])
    assert trained.isdisjoint(masked(task) for task in tasks[family, "dev"])


def masked(task: Task) -> str:
    return re.sub(
        r"\w+", lambda m: "_" if m[0].isdigit() or m[0] in task.drawn else m[0], task.prompt
    )


@pytest.mark.slow
@pytest.mark.parametrize(("split", "num"), NUM_PER_FAMILY.items())
def test_the_prompts_have_the_hash_fixed_before_training(split: Split, num: int) -> None:
    row = re.search(rf"^\| {split.value} \| ([\d,]+) \| `(\w+)` \|$", HYPOTHESES, re.MULTILINE)
    assert row is not None
    tasks = task_set(split, num)
    assert len(tasks) == len(FAMILIES) * num == int(row[1].replace(",", ""))
    assert prompts_hash(tasks) == row[2]


def test_wordings_alone_can_come_from_another_split() -> None:
    opened = ALL_WORDINGS["takings.openings"]
    for seed in range(20):
        task = make("takings", "test", seed, wordings="train")
        assert any(opening in task.prompt for (opening,) in opened.train)
        assert all(
            owns_value(Split.TEST, int(word)) if word.isdigit() else owns_word(Split.TEST, word)
            for word in task.drawn
        )
