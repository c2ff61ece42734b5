"""Nats are split by region as a hand count says, and pairs of systems are compared per token."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from weakref import WeakSet

import pytest
import torch

from pasta_lm.errors import InputError
from pasta_lm.interpreter.positions import Join, PositionStrategy
from pasta_lm.language.document import Document, parse
from pasta_lm.learn.data.annotated import Record
from pasta_lm.learn.data.encode import NO_LABEL, EncodedExample, encode_example
from pasta_lm.learn.train.losses import collate, token_nats
from pasta_lm.measure.cost import ReadingSystem, add_cost, measure, read_references
from pasta_lm.measure.table import Report
from tests.architectures import loaded

MODEL = loaded("llama")
EOS = min(MODEL.eos_ids)
PREDICT = PositionStrategy.PREDICT
ANSWER = parse(
    'Tips:<promise topic="a" tokens="1"/><async> eat fruit</async>'
    '<promise topic="b" tokens="1"/><async> sleep</async> and<sync/> so on.'
)
FORKED = Record("forked", "A question?", ANSWER)
PLAIN = Record("plain", "Another?", Document(ANSWER.without_tags().items))


def numbered(examples: Sequence[EncodedExample]) -> list[list[float]]:
    """Give every label one nat."""
    return [[float(label != NO_LABEL) for label in one.labels] for one in examples]


def system(
    name: str,
    read: object = numbered,
    positions: PositionStrategy = PREDICT,
    join: Join = Join.SHARED,
) -> ReadingSystem:
    return ReadingSystem(name, MODEL.vocabulary, EOS, read, positions, join)  # type: ignore[arg-type]


def count(text: str) -> int:
    return len(MODEL.vocabulary.encode_text(text))


@pytest.mark.parametrize(
    ("positions", "join"),
    [
        (PREDICT, Join.SHARED),
        (PositionStrategy.CONTINUE, Join.SHARED),
        (PositionStrategy.CONTINUE, Join.RECOMPUTE),
    ],
)
def test_every_token_of_the_text_is_counted_once_in_its_region_and_tags_and_the_end_apart(
    positions: PositionStrategy, join: Join
) -> None:
    (row,) = measure([FORKED], [system("pasta", numbered, positions, join)])
    assert row["nats"] == {
        "first": 2,
        "rest": count(" eat fruit") + count(" sleep") - 2,
        "main": count("Tips:") + count(" and"),
        "after_sync": count(" so on."),
    }
    example = encode_example(FORKED, MODEL.vocabulary, EOS, positions, join=join)
    labels = sum(label != NO_LABEL for label in example.labels)
    # Of each promise two pieces, a topic and the block's end; the sync.
    assert row["num_tag_tokens"] == 2 * (2 + count("a") + 1) + 1
    assert row["tag_nats"] == row["num_tag_tokens"]
    assert row["end_nats"] == 1
    assert sum(row["nats"].values()) + row["num_tag_tokens"] + 1 == labels


def test_all_systems_are_divided_by_the_tokens_of_the_plain_text() -> None:
    rows = list(measure([FORKED], [system("pasta"), system("sequential")]))
    tokens = count(ANSWER.plain_text)
    assert [sum(row["num_tokens"].values()) for row in rows] == [tokens, tokens]
    assert rows[1]["nats"] == rows[1]["num_tokens"]


def test_a_model_is_forgotten_before_the_next_one_is_loaded() -> None:
    alive: WeakSet[Reading] = WeakSet()

    class Reading:
        def __call__(self, examples: Sequence[EncodedExample]) -> object:
            return numbered(examples)

    def systems() -> Iterator[ReadingSystem]:
        for name in ("pasta", "baseline", "untaught"):
            assert not alive
            read = Reading()
            alive.add(read)
            yield system(name, read)
            del read

    assert len(list(measure([FORKED, PLAIN], systems()))) == 6


def test_an_answer_without_blocks_is_main_alone() -> None:
    (row,) = measure([PLAIN], [system("pasta")])
    assert row["nats"]["main"] == count(ANSWER.plain_text)
    assert row["num_tokens"]["first"] == row["num_tag_tokens"] == 0


def row_of(name: str, nats: dict[str, float], num_blocks: int = 0) -> dict[str, object]:
    tokens = {"first": 2 * bool(num_blocks), "rest": 0, "main": 8, "after_sync": 0}
    whole = dict.fromkeys(tokens, 0.0) | nats
    key = dict(zip(("system", "reference_id"), name.split("/"), strict=True))
    counts = {"num_blocks": num_blocks, "num_tokens": tokens, "num_tag_tokens": 2}
    return {**key, **counts, "nats": whole, "tag_nats": 0.5}


def test_the_cost_is_the_difference_of_nats_per_token() -> None:
    rows = [
        row_of("pasta/one", {"first": 3, "main": 8}, 2),
        row_of("pasta/two", {"main": 8}),
        row_of("sequential/one", {"first": 2, "main": 7}, 2),
        row_of("sequential/two", {"main": 8}),
    ]
    report = Report("")
    add_cost(report, rows)
    found = report.to_dict()
    assert found["num_answers"] == 2
    assert found["cost"]["mean"] == pytest.approx(2 / 18, abs=1e-5)
    assert found["cost_by_region"]["first"]["mean"] == 0.5
    assert found["cost_by_region"]["main"]["mean"] == pytest.approx(1 / 16, abs=1e-5)
    assert found["cost_by_region"]["after_sync"] is None
    assert found["forked"]["cost"]["mean"] == 0.2
    assert found["tag_nats"]["mean"] == 0.25
    assert "cost_of_visibility" not in found  # nobody read sequentially with the taught model


class TestNatsOfAModel:
    @pytest.mark.parametrize("name", ["llama", "gemma2"])
    def test_they_are_the_cross_entropies_of_the_labels(self, name: str) -> None:
        model = loaded(name)
        examples = [
            encode_example(one, model.vocabulary, min(model.eos_ids), PREDICT)
            for one in (FORKED, PLAIN, FORKED)
        ]
        found = token_nats(model.model, model.vocabulary, examples)
        for example, (nats, given_text) in zip(examples, found, strict=True):
            batch = collate([[example]])
            with torch.inference_mode():
                logits = model.model(
                    input_ids=batch["input_ids"],
                    position_ids=batch["position_ids"],
                    pasta_pass=batch["pasta_pass"],
                    use_cache=False,
                ).logits[0]
            tags = set(model.vocabulary.piece_ids.values())
            for place, label in enumerate(example.labels):
                if label == NO_LABEL:
                    assert nats[place] == given_text[place] == 0
                    continue
                log_p = logits[place].log_softmax(-1)
                assert nats[place] == pytest.approx(-log_p[label].item(), abs=1e-4)
                if label in tags:
                    assert math.isinf(given_text[place])
                else:
                    rest = 1 - log_p[sorted(tags)].exp().sum().item()
                    expected = nats[place] + math.log(max(rest, 1e-30))
                    assert given_text[place] == pytest.approx(expected, abs=1e-2)

    def test_they_do_not_depend_on_the_packs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        examples = [encode_example(one, MODEL.vocabulary, EOS) for one in (FORKED, PLAIN, FORKED)]
        together = token_nats(MODEL.model, MODEL.vocabulary, examples)
        monkeypatch.setattr("pasta_lm.learn.train.losses.MAX_LOGITS", 1)
        alone = token_nats(MODEL.model, MODEL.vocabulary, examples)
        for one, other in zip(together, alone, strict=True):
            assert one.nats == pytest.approx(other.nats, abs=1e-4)


def test_rows_are_chosen_by_the_ids_of_a_file(tmp_path: Path) -> None:
    starter = Path(__file__).parents[2] / "corpora" / "starter"
    found = read_references(starter / "starter.jsonl", starter / "held_out.txt")
    assert [one.id for one in found] == (starter / "held_out.txt").read_text().split()
    unknown = tmp_path / "ids.txt"
    unknown.write_text("starter-0001\nstarter-9999\n")
    with pytest.raises(InputError, match="has no starter-9999"):
        read_references(starter / "starter.jsonl", unknown)
