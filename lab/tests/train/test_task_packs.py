"""Packs of generated tasks: reproducible, and examples are never cut."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

from pasta_lab.tasks import FAMILIES, training_families
from pasta_lab.tasks.registry import make, partner_of
from pasta_lab.train import TaskDataConfig, TaskPacks, TasksConfig
from pasta_lm.errors import InputError, UsageError
from pasta_lm.language.document import Document
from pasta_lm.learn.data.annotated import Record
from pasta_lm.learn.data.encode import NO_LABEL, EncodedExample

NUM_PACKS = 8


def letters(record: Record) -> EncodedExample:
    """Encode a record as so many tokens as it has letters; nothing else of it is read."""
    none = array("i", [0] * (len(record.prompt) + len(record.document.plain_text)))
    return EncodedExample(record.id, none, none, none, none, none, None, 1)


def drawn(max_tokens: int = 6000, **tasks: object) -> TaskPacks:
    config = TaskDataConfig(tasks=TasksConfig(**tasks), max_tokens=max_tokens)  # type: ignore[arg-type]
    return TaskPacks(config, letters, num_packs=NUM_PACKS)


def ids(packs: TaskPacks) -> list[list[str]]:
    return [[example.id for example in packs[index]] for index in range(len(packs))]


def test_the_same_index_gives_the_same_pack_in_any_order() -> None:
    packs, again = drawn(), drawn()
    assert len(packs) == NUM_PACKS
    backwards = [packs[index] for index in reversed(range(NUM_PACKS))]
    assert [[e.id for e in pack] for pack in reversed(backwards)] == ids(again)


def test_packs_and_seeds_share_no_task() -> None:
    flat = [name for seed in range(3) for pack in ids(drawn(seed=seed)) for name in pack]
    assert len(flat) > 100
    assert len(set(flat)) == len(flat)


@pytest.mark.parametrize("max_tokens", [3000, 6000, 20_000])
def test_a_pack_is_filled_until_the_next_task_does_not_fit(max_tokens: int) -> None:
    packs = drawn(max_tokens)
    sizes = [sum(map(len, packs[index])) for index in range(NUM_PACKS)]
    assert all(0.5 * max_tokens < size <= max_tokens for size in sizes)


def test_training_never_sees_a_held_out_family_or_another_split() -> None:
    packs = drawn(100_000)
    seen = {tuple(name.rsplit("-", 2)[:2]) for pack in ids(packs) for name in pack}
    assert seen == {(family, "train") for family in training_families()}
    assert not any(FAMILIES[family].held_out for family, _ in seen)


def spelled(record: Record) -> EncodedExample:
    """Encode a record's prompt and its annotator form, a token for each letter."""
    answer = record.document.annotator_form()
    labels = array("i", [0] * (len(record.prompt) - 1) + [ord(letter) for letter in answer])
    return EncodedExample(
        record.id, labels, labels, labels, labels, labels, None, len(record.prompt)
    )


@pytest.mark.parametrize("plain", [False, True])
def test_clause_packs_hold_both_sides_of_pairs_up_to_the_deciding_token(plain: bool) -> None:
    config = TaskDataConfig(tasks=TasksConfig(clause_packs=2), plain=plain, max_tokens=20_000)
    packs = TaskPacks(config, spelled, num_packs=4)
    usual = TaskPacks(replace(config, tasks=TasksConfig()), spelled, num_packs=4)
    assert (ids(packs)[1] == ids(usual)[1], ids(packs)[2] == ids(usual)[2]) == (True, False)
    pack = packs[2]
    assert len(pack) > 10
    assert sum(map(len, pack)) <= 20_000
    for first, second in zip(pack[::2], pack[1::2], strict=True):
        family, split, seed = first.id.rsplit("-", 2)
        partner = partner_of(make(family, split, int(seed)))
        assert partner is not None
        assert second.id == partner.id
        assert first.labels[-1] != second.labels[-1]
        for example in (first, second):
            assert set(example.labels[:-1]) == {NO_LABEL}
            assert (example.rows, list(example.decisions)) == (None, [])
            assert len(example.positions) == len(example)


def test_a_clause_pack_without_room_for_a_pair_is_refused() -> None:
    config = TaskDataConfig(tasks=TasksConfig(clause_packs=1), max_tokens=100)
    with pytest.raises(InputError, match="a task is longer than 100 tokens"):
        TaskPacks(config, spelled, num_packs=1)[0]


def test_clause_packs_are_within_the_models_context() -> None:
    config = TaskDataConfig(tasks=TasksConfig(clause_packs=1), max_tokens=20_000)
    with pytest.raises(InputError, match="last is 20"):
        TaskPacks(config, placed_letters, num_packs=1, last_position=20)[0]


def placed_letters(record: Record) -> EncodedExample:
    """Encode as ``spelled`` does, with positions that count."""
    example = spelled(record)
    return replace(example, positions=array("i", range(len(example))))


def test_answers_have_their_true_structure_or_no_tags() -> None:
    found: dict[bool, list[Document]] = {False: [], True: []}

    for plain, documents in found.items():

        def kept(record: Record, documents: list[Document] = documents) -> EncodedExample:
            documents.append(record.document)
            return letters(record)

        config = TaskDataConfig(plain=plain, max_tokens=40_000)
        TaskPacks(config, kept, num_packs=1)[0]
    tagged, untagged = found.values()
    assert [d.without_tags() for d in tagged] == untagged
    assert sum(len(d.blocks) for d in tagged) > 5
    assert sum(d.num_syncs for d in tagged) > 0


def test_a_negative_number_of_clause_packs_is_refused() -> None:
    with pytest.raises(UsageError, match="data.tasks.clause_packs must be at least 0"):
        TasksConfig(clause_packs=-1)
