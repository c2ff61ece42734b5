"""Files as packs: records are held out, too long ones named, examples whole and within a bound."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_lm.errors import InputError
from pasta_lm.language.document import Block, Document, Text
from pasta_lm.learn.data.annotated import Record, write_records
from pasta_lm.learn.data.encode import EncodedExample
from pasta_lm.learn.train.config import DataConfig
from pasta_lm.learn.train.packs import Pack, fill_packs, packs_of


def encoded(record: Record) -> EncodedExample:
    """Encode a record as so many tokens as its prompt has letters, each at its own place."""
    return example(record.id, len(record.prompt))


def example(name: str, length: int) -> EncodedExample:
    ids = array("i", range(length))
    return EncodedExample(name, ids, ids, ids, ids, ids, None, 1)


def ids(packs: list[Pack]) -> list[list[str]]:
    return [[example.id for example in pack] for pack in packs]


# --- the model's context


@pytest.fixture
def file(tmp_path: Path) -> DataConfig:
    """Return records of 5, 10 and 20 tokens: the last positions are one less."""
    path = tmp_path / "data.jsonl"
    answer = Document((Text("Yes."),))
    write_records(path, [Record(f"of-{n}", "x" * n, answer) for n in (5, 20, 10)])
    return DataConfig(file=str(path), max_tokens=40)


@pytest.mark.parametrize("last", [None, 19, 20, 1000])
def test_records_within_the_context_are_accepted(file: DataConfig, last: int | None) -> None:
    packs = packs_of(file, encoded, seed=0, last_position=last)
    assert sorted(name for pack in ids(packs) for name in pack) == ["of-10", "of-20", "of-5"]


@pytest.mark.parametrize("last", [18, 10])
def test_a_record_beyond_the_context_is_named(file: DataConfig, last: int) -> None:
    with pytest.raises(InputError) as caught:
        packs_of(file, encoded, seed=0, last_position=last)
    assert caught.value.message.startswith("record of-20 reaches position 19, and the model's last")
    assert caught.value.message.endswith(str(last))


def test_answers_of_a_file_are_transformed_as_the_recipe_says(tmp_path: Path) -> None:
    text = "Two parts.\n\n1. Bread: it is baked from flour.\n2. Jam: it is boiled from fruit."
    text += "\n3. Tea: it is brewed."
    marked = Document((Text(text[:12]), Block("parts", 3, (Text(text[12:]),))))
    write_records(tmp_path / "data.jsonl", [Record("1", "Say.", marked)])
    met: list[Document] = []

    def encode(record: Record) -> EncodedExample:
        met.append(record.document)
        return encoded(record)

    for changes in ({}, {"plain": True}, {"rule": "apar"}):
        data = DataConfig(file=str(tmp_path / "data.jsonl"), **changes)  # type: ignore[arg-type]
        packs_of(data, encode, 0)
    assert [*map(len, (one.blocks for one in met))] == [1, 0, 3]
    assert {one.plain_text for one in met} == {text}
    assert [block.plain_text for block in met[2].blocks] == [
        " it is baked from flour.",
        " it is boiled from fruit.",
        " it is brewed.",
    ]


# --- several files, and what is held out


def write(path: Path, *names: str) -> str:
    write_records(path, [Record(name, "Say.", Document((Text("Yes."),))) for name in names])
    return str(path)


def test_records_of_several_files_are_shuffled_together(tmp_path: Path) -> None:
    names = [[f"{letter}-{n}" for n in range(6)] for letter in "ab"]
    files = tuple(write(tmp_path / f"{one[0]}.jsonl", *one) for one in names)
    (found,) = ids(packs_of(DataConfig(file=files), encoded, seed=0))
    assert sorted(found) == [*names[0], *names[1]]
    assert {name[0] for name in found[:6]} == {"a", "b"}


@pytest.mark.parametrize(
    "text", ["a-2\n\n  b-1 \n", '{"id": "a-2", "prompt": "Say."}\n{"id": "b-1"}\n']
)
def test_excluded_ids_are_held_out(tmp_path: Path, text: str) -> None:
    files = (write(tmp_path / "a.jsonl", "a-1", "a-2"), write(tmp_path / "b.jsonl", "b-1", "b-2"))
    (tmp_path / "ids.txt").write_text(text, encoding="utf-8")
    data = DataConfig(file=files, exclude=str(tmp_path / "ids.txt"))
    assert sorted(*ids(packs_of(data, encoded, seed=0))) == ["a-1", "b-2"]


def test_excluded_ids_that_no_record_has_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "a.jsonl", "a-1", "a-2")
    (some, none) = (tmp_path / "some.txt", tmp_path / "none.txt")
    some.write_text("a-1\nx-1\n", encoding="utf-8")
    none.write_text("x-1\nx-2\n", encoding="utf-8")
    data = DataConfig(file=file, exclude=(str(some),))
    assert ids(packs_of(data, encoded, seed=0)) == [["a-2"]]
    assert f"1 of 2 ids of {some} are in no record and left out: x-1" in capsys.readouterr().err
    with pytest.raises(InputError, match="none.txt holds out nothing: no record has one of its"):
        packs_of(DataConfig(file=file, exclude=(str(some), str(none))), encoded, seed=0)


@pytest.mark.parametrize("text", ["", '{"id": ', '{"name": "a-1"}'])
def test_a_broken_file_of_ids_is_named(tmp_path: Path, text: str) -> None:
    file = write(tmp_path / "a.jsonl", "a-1")
    (tmp_path / "ids").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=f"{tmp_path / 'ids'}"):
        packs_of(DataConfig(file=file, exclude=str(tmp_path / "ids")), encoded, seed=0)


# --- packs

MAX_TOKENS = 12
lengths = st.lists(st.integers(1, MAX_TOKENS + 3), max_size=30)
seeds = st.integers(0, 5)


def examples(of_lengths: list[int]) -> list[EncodedExample]:
    return [example(str(number), length) for number, length in enumerate(of_lengths)]


@given(lengths, seeds)
def test_every_example_is_whole_in_one_pack_or_named_as_too_long(
    of_lengths: list[int], seed: int
) -> None:
    by_id = {e.id: e for e in examples(of_lengths)}
    packs, too_long = fill_packs(by_id.values(), MAX_TOKENS, seed)
    packed = [e for group in packs for e in group]
    assert all(e is by_id[e.id] for e in packed)
    assert sorted([*(e.id for e in packed), *too_long]) == sorted(by_id)
    assert {*too_long} == {e.id for e in by_id.values() if len(e) > MAX_TOKENS}


@given(lengths, seeds)
def test_packs_are_never_empty_too_long_or_closed_too_early(
    of_lengths: list[int], seed: int
) -> None:
    packs, _ = fill_packs(examples(of_lengths), MAX_TOKENS, seed)
    sizes = [sum(map(len, group)) for group in packs]
    assert all(0 < size <= MAX_TOKENS for size in sizes)
    for size, following in zip(sizes, packs[1:], strict=False):
        assert size + len(following[0]) > MAX_TOKENS


def order(seed: int) -> list[str]:
    return [e.id for group in fill_packs(examples([1] * 40), MAX_TOKENS, seed)[0] for e in group]


def test_the_seed_decides_the_order_of_examples() -> None:
    given_order = [str(number) for number in range(40)]
    orders = [given_order, *(order(seed) for seed in range(3))]
    assert all(sorted(one) == sorted(given_order) for one in orders)
    assert len({tuple(one) for one in orders}) == len(orders)
