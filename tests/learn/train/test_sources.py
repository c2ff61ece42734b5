"""Files as packs: records are held out, too long ones named, examples whole and within a bound."""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from math import log
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_lm.errors import InputError, PastaError, UsageError
from pasta_lm.journal import line_of, read_rows, write_rows
from pasta_lm.language.document import Block, Document, Text
from pasta_lm.learn.chat.client import ChatClient
from pasta_lm.learn.data.annotated import Record, write_records
from pasta_lm.learn.data.encode import EncodedExample
from pasta_lm.learn.data.preferences import PreferencePair, PromptWithReference
from pasta_lm.learn.train import preference
from pasta_lm.learn.train.config import DataConfig, JudgeConfig, PreferenceConfig
from pasta_lm.learn.train.packs import Pack, fill_packs, packs_of
from pasta_lm.learn.train.preference import Round, sampling_of
from tests.fakes.scripted_judge import answers_of
from tests.fakes.scripted_server import ScriptedReply, ScriptedServer
from tests.learn.annotate.runs import AT_ONCE
from tests.learn.data.rollouts import sample
from tests.learn.train.recipes import prompts, recipe, rows, train


def encoded(record: Record) -> EncodedExample:
    """Encode a record as so many tokens as its prompt has letters, each at its own place."""
    return example(record.id, len(record.prompt))


def example(name: str, length: int) -> EncodedExample:
    ids = array("i", range(length))
    return EncodedExample(name, ids, ids, ids, ids, ids, None, 1)


def ids(packs: list[Pack]) -> list[list[str]]:
    return [[example.id for example in pack] for pack in packs]


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
    texts = [" it is baked from flour.", " it is boiled from fruit.", " it is brewed."]
    assert [block.plain_text for block in met[2].blocks] == texts


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


def test_excluded_ids_that_no_record_has_or_records_of_two_prompts_have_are_named(
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
    write_records(tmp_path / "b.jsonl", [Record("a-1", "Tell.", Document((Text("Yes."),)))])
    data = replace(data, file=(file, str(tmp_path / "b.jsonl")))
    with pytest.raises(InputError, match="has the id a-1, which records of two prompts have"):
        packs_of(data, encoded, seed=0)


@pytest.mark.parametrize("text", ["", '{"id": ', '{"name": "a-1"}'])
def test_a_broken_file_of_ids_is_named(tmp_path: Path, text: str) -> None:
    file = write(tmp_path / "a.jsonl", "a-1")
    (tmp_path / "ids").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=f"{tmp_path / 'ids'}"):
        packs_of(DataConfig(file=file, exclude=str(tmp_path / "ids")), encoded, seed=0)


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


ROOT = Path(__file__).parents[3]
NUM_PROMPTS = 6
PROMPTS = prompts(NUM_PROMPTS, 1)[0]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the judge's client try again at once."""
    at_once = partial(ChatClient, policy=AT_ONCE)
    monkeypatch.setattr("pasta_lm.learn.train.config.ChatClient", at_once)


def longer_wins(asked: Mapping[str, Any]) -> ScriptedReply:
    """State that the longer answer is better; as a token, with three chances in four."""
    first, second = map(len, answers_of(asked["messages"][-1]["content"]))
    better, worse = ("A", "B") if first > second else ("B", "A")
    top = {better: log(0.75), worse: log(0.25)}
    return ScriptedReply(f"It says more.\n\nVerdict: {better}, confidence: 80", top)


def judged(folder: Path, base_url: str, **keys: Any) -> PreferenceConfig:
    """Return a recipe whose rollouts are there: a long, a short and a middling answer each."""
    config = replace(
        recipe("base", "baseline", folder / "out", rounds=1),
        judge=JudgeConfig(**{"model": "scripted", "base_url": base_url, **keys}),
    )
    file = rollouts_of(config)
    if not file.exists():
        write_rows(file, [row(config, prompt) for prompt in PROMPTS])
    return config


def rollouts_of(config: PreferenceConfig) -> Path:
    return Path(config.train.out) / "round-1" / "rollouts.jsonl"


def row(config: PreferenceConfig, prompt: PromptWithReference) -> dict[str, Any]:
    texts = (f"{prompt.reference} And so on.", "No.", "Very well.")
    sampled = sampling_of(config, round_of(config))
    baseline = asdict(sample("Very well.", path=20, content=20))
    samples = [asdict(sample(text)) for text in texts]
    key = {"id": prompt.id, "prompt": prompt.prompt, "sampled": asdict(sampled)}
    return {**key, "baseline": baseline, "samples": samples}


def round_of(config: PreferenceConfig) -> Round:
    return Round(1, Path(config.train.out) / "round-1", "base")


def pairs_of(config: PreferenceConfig) -> list[PreferencePair]:
    return preference.pairs_of(config, round_of(config), PROMPTS, None)


def replies(config: PreferenceConfig) -> Path:
    return Path(config.train.out) / "replies.jsonl"


@pytest.mark.parametrize(("method", "confidence"), [("confidence", 0.8), ("logprobs", 0.75)])
def test_quality_combines_verdicts_on_both_opponents_in_both_orders(
    tmp_path: Path, method: str, confidence: float
) -> None:
    with ScriptedServer(longer_wins) as server:
        config = judged(tmp_path, server.base_url, method=method)
        pairs = pairs_of(config)
        assert len(pairs) == NUM_PROMPTS
        for pair in pairs:
            # The best wins all four, the worst loses all four: smoothed by 1, at speedup 2.
            most = 4 * confidence + 1
            assert pair.parts["quality_chosen"] == pytest.approx(most)
            assert pair.parts["quality_rejected"] == pytest.approx(1 / most)
            assert pair.score_chosen == pytest.approx(2 + most)
        # Of the middling sample, equal to the baseline's answer, only the original is asked about.
        assert sum(server.paid.values()) == NUM_PROMPTS * (4 + 4 + 2)
        assert {*server.paid.values()} == {1}
    (logged,) = rows(Path(config.train.out), 1)
    assert (logged["judge"], logged["is_scripted"]) == (
        f"scripted/{'one-token-v1' if method == 'logprobs' else 'stated-confidence-v1'}",
        True,
    )
    assert (logged["num_unjudged"], logged["no_verdict"]) == (0, {})


def mute(asked: Mapping[str, Any]) -> ScriptedReply:
    """Say nothing of an answer, wherever it stands."""
    is_short = "No." in answers_of(asked["messages"][-1]["content"])
    return ScriptedReply("I cannot tell.") if is_short else longer_wins(asked)


def test_many_missing_verdicts_stop_the_run_and_allowed_ones_are_left_out_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ScriptedServer(mute) as server:
        config = judged(tmp_path, server.base_url)
        with pytest.raises(PastaError, match="no verdict on 24 of 60 comparisons"):
            pairs_of(config)
        assert not (round_of(config).folder / "pairs.jsonl").exists()
        assert len(read_rows(replies(config))) == 60
        config = judged(tmp_path, server.base_url, max_missing=0.5)
        pairs = pairs_of(config)
    assert [one.rejected.plain_text for one in pairs] == ["Very well."] * NUM_PROMPTS
    (logged,) = rows(Path(config.train.out), 1)
    ids = [task.id for task in PROMPTS]
    assert logged["num_unjudged"] == NUM_PROMPTS
    assert logged["no_verdict"] == {"not-a-verdict": {"count": 4 * NUM_PROMPTS, "prompts": ids}}
    said = capsys.readouterr().err
    assert "gave no verdict: not-a-verdict 24; 6 samples left out" in said


def test_a_run_cannot_be_resumed_with_another_judge(tmp_path: Path) -> None:
    config = judged(tmp_path, "http://localhost:1/v1")
    with pytest.raises(PastaError):
        train(config, NUM_PROMPTS, None)
    moved = replace(config.judge, base_url="http://localhost:2/v1", max_in_flight=1)
    for key, value in (("model", "b"), ("method", "logprobs")):
        other = replace(config, judge=replace(moved, **{key: value}))
        with pytest.raises(UsageError, match=f"begun with judge.{key}"):
            train(other, NUM_PROMPTS, None, resume=True)


def read_by(config: PreferenceConfig, file: Path) -> PreferenceConfig:
    return replace(config, judge=JudgeConfig(file=str(file)))


@pytest.mark.parametrize(
    ("num_verdicts", "more", "message"),
    [
        (56, [], r"4 of 60 comparisons have no verdict \(\w{16}, \w{16}, \w{16}, …\)"),
        (60, [{"id": "no", "winner": 1}], r"1 verdicts are on no comparison here \(no\)"),
        *(
            (60, [row], rf"1 rows are no verdicts, .* \(line 61: {re.escape(json.dumps(row))}\)")
            for row in (
                {"winner": 1},
                {"id": "no"},
                {"id": 7, "winner": 1},
                {"id": "no", "winner": 3},
                {"id": "no", "winner": True},
                {"id": "no", "winner": "1"},
                {"id": "no", "winner": 1.0},
                {"id": "no", "winner": 2, "confidence": 0.4},
                {"id": "no", "winner": 2, "confidence": 80},
                {"id": "no", "winner": 2, "confidence": True},
                {"id": "no", "winner": 2, "confidance": 0.9},
            )
        ),
        (
            60,
            [{"id": "FIRST", "winner": 1}],
            "1 rows are no verdicts, or contradict an earlier one",
        ),
    ],
)
def test_verdicts_of_a_file_that_cannot_be_used_are_named_before_anything_is_loaded(
    num_verdicts: int, more: list[dict[str, Any]], message: str, tmp_path: Path
) -> None:
    file, to_read = tmp_path / "verdicts.jsonl", tmp_path / "pairs.jsonl"
    config = read_by(judged(tmp_path, "http://localhost:1/v1"), file)
    assert train(config, NUM_PROMPTS, None, to_read=to_read) == to_read
    pairs = read_rows(to_read)
    verdicts = [{**row, "winner": 2} for row in pairs[:num_verdicts]]  # added to what was read
    more = [{**row, "id": pairs[0]["id"]} if row.get("id") == "FIRST" else row for row in more]
    file.write_bytes(b"".join(map(line_of, [*verdicts, *more])))
    with pytest.raises(InputError, match=message):
        train(config, NUM_PROMPTS, None, resume=True)
    assert not (round_of(config).folder / "pairs.jsonl").exists()


def test_a_run_that_a_reader_judges_begins_with_what_is_to_be_read(tmp_path: Path) -> None:
    config = read_by(recipe("base", "base", tmp_path / "out", rounds=1), tmp_path / "v.jsonl")
    with pytest.raises(UsageError, match="not sampled yet"):
        train(config, NUM_PROMPTS, None)
    (tmp_path / "v.jsonl").write_text('{"id": "a", "winner": 1}', "utf-8")
    with pytest.raises(UsageError, match="exists, and may hold verdicts"):
        train(config, NUM_PROMPTS, None, to_read=tmp_path / "v.jsonl")
    assert not (tmp_path / "out").exists()
