"""Generated tasks and files as packs: reproducible, and examples are never cut."""

from __future__ import annotations

from array import array
from dataclasses import replace
from pathlib import Path

import pytest

from pasta_lab.tasks import FAMILIES, training_families
from pasta_lab.tasks.registry import make, partner_of
from pasta_lm.errors import InputError
from pasta_lm.language.document import Block, Document, Text
from pasta_lm.learn.data.encode import NO_LABEL, EncodedExample
from pasta_lm.learn.train.config import DataConfig, TasksConfig
from pasta_lm.learn.train.sources import PackSet, packs_of
from pasta_lm.models.annotated import Record, write_records

NUM_PACKS = 8


def letters(record: Record) -> EncodedExample:
    """Encode a record as so many tokens as it has letters; nothing else of it is read."""
    none = array("i", [0] * (len(record.prompt) + len(record.document.plain_text)))
    return EncodedExample(record.id, none, none, none, none, none, None, 1)


def drawn(max_tokens: int = 6000, **tasks: object) -> PackSet:
    config = DataConfig(tasks=TasksConfig(**tasks), max_tokens=max_tokens)  # type: ignore[arg-type]
    return packs_of(config, letters, NUM_PACKS, seed=0)


def ids(packs: PackSet) -> list[list[str]]:
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


@pytest.mark.parametrize("annotator", ["gold", "plain"])
def test_clause_packs_hold_both_sides_of_pairs_up_to_the_deciding_token(annotator: str) -> None:
    tasks = TasksConfig(annotator=annotator, clause_packs=2)
    config = DataConfig(tasks=tasks, max_tokens=20_000)
    packs = packs_of(config, spelled, 4, seed=0)
    usual = packs_of(replace(config, tasks=TasksConfig(annotator=annotator)), spelled, 4, seed=0)
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
    config = DataConfig(tasks=TasksConfig(clause_packs=1), max_tokens=100)
    with pytest.raises(InputError, match="a task is longer than 100 tokens"):
        packs_of(config, spelled, 1, seed=0)[0]


def test_clause_packs_are_within_the_models_context() -> None:
    config = DataConfig(tasks=TasksConfig(clause_packs=1), max_tokens=20_000)
    with pytest.raises(InputError, match="last is 20"):
        packs_of(config, placed_letters, 1, seed=0, last_position=20)[0]


def placed_letters(record: Record) -> EncodedExample:
    """Encode as ``spelled`` does, with positions that count."""
    example = spelled(record)
    return replace(example, positions=array("i", range(len(example))))


def test_the_annotator_of_the_recipe_marks_the_answers() -> None:
    found: dict[str, list[Document]] = {"gold": [], "plain": [], "never_sync": []}

    for name, documents in found.items():

        def kept(record: Record, documents: list[Document] = documents) -> EncodedExample:
            documents.append(record.document)
            return letters(record)

        config = DataConfig(tasks=TasksConfig(annotator=name), max_tokens=40_000)
        packs_of(config, kept, 1, seed=0)[0]
    gold, plain, unsynced = found.values()
    assert [d.plain_text for d in gold] == [d.plain_text for d in plain]
    assert sum(len(d.blocks) for d in gold) > 5
    assert sum(d.num_syncs for d in gold) > 0
    assert all(not d.blocks and not d.num_syncs for d in plain)
    assert [len(d.blocks) for d in unsynced] == [len(d.blocks) for d in gold]
    assert all(not d.num_syncs for d in unsynced)


# --- the model's context


def placed(record: Record) -> EncodedExample:
    """Encode a record as so many tokens as its prompt has letters, each at its own place."""
    ids = array("i", range(len(record.prompt)))
    return EncodedExample(record.id, ids, ids, ids, ids, ids, None, 1)


@pytest.fixture
def file(tmp_path: Path) -> DataConfig:
    """Return records of 5, 10 and 20 tokens: the last positions are one less."""
    path = tmp_path / "data.jsonl"
    answer = Document((Text("Yes."),))
    write_records(path, [Record(f"of-{n}", "x" * n, answer) for n in (5, 20, 10)])
    return DataConfig(file=str(path), max_tokens=40)


@pytest.mark.parametrize("last", [None, 19, 20, 1000])
def test_records_within_the_context_are_accepted(file: DataConfig, last: int | None) -> None:
    packs = packs_of(file, placed, None, seed=0, last_position=last)
    assert sorted(name for pack in ids(packs) for name in pack) == ["of-10", "of-20", "of-5"]


@pytest.mark.parametrize("last", [18, 10])
def test_a_record_beyond_the_context_is_named(file: DataConfig, last: int) -> None:
    with pytest.raises(InputError) as caught:
        packs_of(file, placed, None, seed=0, last_position=last)
    assert caught.value.message.startswith("record of-20 reaches position 19, and the model's last")
    assert caught.value.message.endswith(str(last))


def test_a_record_that_is_too_long_for_a_pack_is_no_error(file: DataConfig) -> None:
    assert file.file is not None
    shorter = DataConfig(file=file.file, max_tokens=15)
    packs = packs_of(shorter, placed, None, seed=0, last_position=9)
    assert sorted(name for pack in ids(packs) for name in pack) == ["of-10", "of-5"]


def test_a_task_beyond_the_context_is_named_when_it_is_generated() -> None:
    config = DataConfig(tasks=TasksConfig(), max_tokens=6000)
    packs = packs_of(config, placed, NUM_PACKS, seed=0, last_position=20)
    with pytest.raises(InputError, match=r"record \w+-train-\d+ reaches position \d+, "):
        packs[0]


def test_answers_of_a_file_are_transformed_as_the_recipe_says(tmp_path: Path) -> None:
    text = "Two parts.\n\n1. Bread: it is baked from flour.\n2. Jam: it is boiled from fruit."
    marked = Document((Text(text[:12]), Block("parts", 3, (Text(text[12:]),))))
    write_records(tmp_path / "data.jsonl", [Record("1", "Say.", marked)])
    met: list[Document] = []

    def encode(record: Record) -> EncodedExample:
        met.append(record.document)
        return letters(record)

    for changes in ({}, {"plain": True}, {"rule": "apar"}):
        data = DataConfig(file=str(tmp_path / "data.jsonl"), **changes)  # type: ignore[arg-type]
        packs_of(data, encode, None, 0)
    assert [*map(len, (one.blocks for one in met))] == [1, 0, 2]
    assert {one.plain_text for one in met} == {text}
    assert [block.plain_text for block in met[2].blocks] == [
        " it is baked from flour.",
        " it is boiled from fruit.",
    ]


# --- several files, and what is held out


def write(path: Path, *names: str) -> str:
    write_records(path, [Record(name, "Say.", Document((Text("Yes."),))) for name in names])
    return str(path)


def test_records_of_several_files_are_shuffled_together(tmp_path: Path) -> None:
    names = [[f"{letter}-{n}" for n in range(6)] for letter in "ab"]
    files = tuple(write(tmp_path / f"{one[0]}.jsonl", *one) for one in names)
    (found,) = ids(packs_of(DataConfig(file=files), letters, None, seed=0))
    assert sorted(found) == [*names[0], *names[1]]
    assert {name[0] for name in found[:6]} == {"a", "b"}


@pytest.mark.parametrize(
    "text", ["a-2\n\n  b-1 \n", '{"id": "a-2", "prompt": "Say."}\n{"id": "b-1"}\n']
)
def test_excluded_ids_are_held_out(tmp_path: Path, text: str) -> None:
    files = (write(tmp_path / "a.jsonl", "a-1", "a-2"), write(tmp_path / "b.jsonl", "b-1", "b-2"))
    (tmp_path / "ids.txt").write_text(text, encoding="utf-8")
    data = DataConfig(file=files, exclude=str(tmp_path / "ids.txt"))
    assert sorted(*ids(packs_of(data, letters, None, seed=0))) == ["a-1", "b-2"]


def test_excluded_ids_that_no_record_has_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "a.jsonl", "a-1", "a-2")
    (some, none) = (tmp_path / "some.txt", tmp_path / "none.txt")
    some.write_text("a-1\nx-1\n", encoding="utf-8")
    none.write_text("x-1\nx-2\n", encoding="utf-8")
    data = DataConfig(file=file, exclude=(str(some),))
    assert ids(packs_of(data, letters, None, seed=0)) == [["a-2"]]
    assert f"1 of 2 ids of {some} are in no record and left out: x-1" in capsys.readouterr().err
    with pytest.raises(InputError, match="none.txt holds out nothing: no record has one of its"):
        packs_of(DataConfig(file=file, exclude=(str(some), str(none))), letters, None, seed=0)


@pytest.mark.parametrize("text", ["", '{"id": ', '{"name": "a-1"}'])
def test_a_broken_file_of_ids_is_named(tmp_path: Path, text: str) -> None:
    file = write(tmp_path / "a.jsonl", "a-1")
    (tmp_path / "ids").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=f"{tmp_path / 'ids'}"):
        packs_of(DataConfig(file=file, exclude=str(tmp_path / "ids")), letters, None, seed=0)
