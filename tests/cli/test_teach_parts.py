"""``pasta teach --parts``: what is learned is what ``pasta fill`` decodes, and no more."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pasta_lm.journal import read_rows, write_rows
from pasta_lm.learn.data.encode import NO_LABEL, EncodedExample
from pasta_lm.learn.train import sft as training
from pasta_lm.learn.train.losses import collate, label_nats, over_labels, plain_texts
from pasta_lm.models.adapter import read_adapter
from pasta_lm.models.folder import read_pasta_config
from pasta_lm.teaching.parts import examples_of, labelled, recipe_of
from tests.architectures import loaded
from tests.cli.conftest import Pasta
from tests.engines.local.test_grammars import model
from tests.fakes.power_cut import power_cut_after
from tests.learn.train.recipes import begin, save_tiny
from tests.learn.train.test_collate import eager

pytest.importorskip("llguidance")

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x7f"), max_size=12)
CHOICES, NUMBERS = ["one", "one more", 2, None], st.floats(allow_nan=False, allow_infinity=False)
KINDS: list[tuple[dict[str, Any], st.SearchStrategy[Any]]] = [
    ({"type": "string", "description": "In words."}, TEXT),
    ({"type": "number"}, NUMBERS | st.integers(-(10**9), 10**9)),
    ({"type": ["boolean", "null"]}, st.sampled_from([True, False, None])),
    ({"enum": CHOICES}, st.sampled_from(CHOICES)),
    ({"type": "array", "items": {"type": "string"}}, st.lists(TEXT, max_size=3)),
]
FIELDS = {"hotel": {"type": "string"}, "nights": {"type": "integer"}}
SCHEMA: dict[str, Any] = {"required": ["hotel"], "properties": FIELDS}
DATA = {"hotel": "Sol", "nights": 2}
ROWS = [{"id": f"d{n}", "text": f"Letter {n}.", "data": DATA} for n in range(6)]


@st.composite
def objects(draw: st.DrawFn, depth: int = 2) -> tuple[dict[str, Any], dict[str, Any]]:
    """Draw the schema of an object, and data without some of its values."""
    properties, data = dict[str, Any](), dict[str, Any]()
    for key in draw(st.lists(st.sampled_from(["a", 'b"', "c d", "é"]), min_size=1, unique=True)):
        properties[key], values = draw(st.sampled_from(KINDS))
        if depth and draw(st.booleans()):
            properties[key], value = draw(objects(depth - 1))
        else:
            value = draw(values)
        if not data or draw(st.booleans()):
            data[key] = value
    return {"type": "object", "properties": properties}, data


def taught(name: str, schema: Any, data: Any) -> tuple[Any, EncodedExample, dict[int, list[int]]]:
    """Return what fill asks of a document, what is learned, and the ids of each part's value."""
    whole, config = model(name), recipe_of("m", Path("f"), Path("o"), [])
    documents = labelled(schema, "Read.", [("d", "A letter.", None, data)] * 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(whole), "from_pretrained", lambda _: nullcontext(whole))
        example, _ = examples_of(documents, schema, config)
    words, texts = whole.engine.loaded.vocabulary, documents[0][2]
    values = {number: words.encode_text(text) for number, text in texts.items()}
    return whole.filling(schema).request("Read.\n\nA letter."), example, values


@settings(max_examples=40, deadline=None)
@given(objects())
def test_each_part_predicts_its_value_behind_what_the_engine_shows_it_under_its_mask(
    drawn: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    request, example, values = taught("llama", *drawn)
    assert sum(label != NO_LABEL for label in example.labels) == sum(map(len, values.values()))
    for (number, value), slots in zip(values.items(), plain_texts(example), strict=True):
        start = request.expansion.known[number]
        seen = [*request.prompt, *start.prefix]
        assert [example.token_ids[slot] for slot in slots] == [*seen, *value]
        labels = [example.labels[slot] for slot in slots]
        assert labels == [*[NO_LABEL] * (len(seen) - 1), *value, NO_LABEL]
        matcher = model("llama").engine.grammars.matcher(start.structured_outputs)  # type: ignore[attr-defined]
        for token in value:
            assert matcher.allowed()[token]
            matcher.consume(token)
        assert matcher.is_complete


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt_oss"])
def test_the_loss_of_a_document_is_that_of_plain_causal_passes(name: str) -> None:
    inner = {"o": {"properties": {"x": {}, "y": {}}}, "z": {}}
    data = {"o": {"x": [1, "two"], "y": None}, "z": 3}
    request, example, values = taught(name, {"properties": inner}, data)
    words = model(name).engine.loaded.vocabulary
    assert [words.text(value)[-1] for value in values.values()] == [",", "}", "}"]
    nats = []
    with torch.inference_mode():
        for number, value in values.items():
            seen = [*request.prompt, *request.expansion.known[number].prefix]
            logits = eager(name)(torch.tensor([[*seen, *value[:-1]]])).logits[0, len(seen) - 1 :]
            nats.append(label_nats(logits, torch.tensor(value)))
        ours = over_labels(loaded(name).model, collate([[example]]), label_nats)
    torch.testing.assert_close(ours, torch.cat(nats), atol=1e-4, rtol=0)


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.chdir(tmp_path)
    begin(tmp_path)
    write_rows(Path("rows.jsonl"), ROWS)
    Path("s.json").write_text(json.dumps(SCHEMA), "utf-8")
    changes = "train.epochs=16 train.learning_rate=1e-2 train.save_steps=4 data.max_tokens=900"
    steps = [word for change in changes.split() for word in ("--set", change)]
    return ["teach", "base", "--parts", "rows.jsonl", "--schema", "s.json", "--out", "out", *steps]


def test_a_model_learns_the_fields_also_after_a_power_cut_and_fill_reads_it(
    command: list[Any], pasta: Pasta
) -> None:
    command += ["--prompt", "Read."]
    result = pasta(*command)
    assert (result.code, result.out) == (0, f"{Path('out/model').resolve()}\n"), result.err
    assert "in 1 documents that were held back: 0 of 2 before, 2 after" in result.err
    assert read_rows(Path("out/journal.jsonl"))[1:] == [
        {"id": "taught", "documents": 5}, {"id": "after", "fields": 2, "right": 2}
    ]  # fmt: skip
    told = json.loads(Path("out/teach.json").read_text("utf-8"))
    assert (told["prompt"], told["schema"]) == ("Read.", json.dumps(SCHEMA))
    filled = pasta("fill", "Read.\n\nLetter 9.", "--schema", "s.json", "-m", "out/model", "--json")
    assert filled.json["data"] == DATA
    assert read_pasta_config(Path("out/model")) is None  # it was taught no tags
    other = pasta(*command, "--prompt", "Look.")
    assert (other.code, "begun with prompt = 'Read.', not 'Look.'" in other.err) == (2, True)
    whole = read_adapter(Path(shutil.move("out", "whole")) / "model")
    with power_cut_after(training, "weighted_mean", 20):
        pasta(*command, "--debug")
    assert pasta(*command).code == 0
    again = read_adapter(Path("out/model"))
    torch.testing.assert_close(again.low_rank, whole.low_rank, atol=1e-5, rtol=1e-4)
    reordered = {**SCHEMA, "properties": dict(reversed(FIELDS.items()))}
    Path("s.json").write_text(json.dumps(reordered), "utf-8")
    assert "begun with schema = " in pasta(*command).err


def test_a_model_that_knows_the_tags_keeps_them(command: list[Any], pasta: Pasta) -> None:
    command[1] = save_tiny(Path("taught").resolve())
    assert pasta(*command[:8], "--set", "train.epochs=1").code == 0
    assert read_pasta_config(Path("out/model")) == read_pasta_config(Path("taught"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": None}, "x: it has no data"),
        ({"data": {"nights": 2}}, "x: field hotel is required, and has no value"),
        ({"data": {**DATA, "night": 2}}, "x: the schema has no field night"),
        ({"data": {**DATA, "nights": 2.5}}, "nights: the schema does not allow 2.5, from '.5}'"),
        ({"text": None}, "x: it needs a text"),
        ({"data": {"hotel": "A\u0300"}}, 'x: field hotel: the tokenizer reads "\u00c0"'),
        ({"id": "d0"}, "d0: the id 'd0' occurs twice"),
        ({"text": "T " * 500}, "x has 1049 tokens with its fields, too many"),
        ({"text": None, "messages": [{"role": "user", "content": "T"}]}, "x: it has messages, so"),
    ],
)
def test_a_row_that_cannot_be_learned_is_named_and_nothing_is_begun(
    changes: Any, message: str, command: list[Any], pasta: Pasta
) -> None:
    write_rows(Path("rows.jsonl"), [*ROWS, {"id": "x", "text": "T", "data": DATA, **changes}])
    tokenizer = json.loads(Path("base/tokenizer.json").read_text("utf-8"))
    composes = json.dumps({**tokenizer, "normalizer": {"type": "NFC"}})
    Path("base/tokenizer.json").write_text(composes, "utf-8")
    if "token" not in message:  # only the tokenizer's faults need a model
        Path("base", "model.safetensors").unlink()
    result = pasta(*command, "--prompt", "Read.")
    assert (result.code, result.out, Path("out").exists()) == (3, "", False)
    assert message in result.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--recipe", "r.toml"], "with no other flags but --set and --prompt"),
        (["--set", "train.decision_weight=2"], "--parts does not read train.decision_weight=2"),
        (["--schema", "name, when date"], "no such type 'date'"),
        (["--schema", "list.json"], "the schema is no object of fields"),
        (["--schema", ""], "--parts and --schema go together"),
        (["--prompt", " "], "the prompt is empty"),
        (["--out", "base"], "base holds files, but no run: it is not overwritten"),
        (["--parts", "few.jsonl"], "1 labelled documents are too few"),
        (["--parts", "twice.jsonl"], "document line 1: it cannot be read: the key 'hotel' stands"),
    ],
)
def test_what_does_not_fit_is_refused_before_a_model_is_loaded(
    words: list[str], message: str, command: list[Any], pasta: Pasta
) -> None:
    Path("list.json").write_text('{"type": "array"}', "utf-8")
    write_rows(Path("few.jsonl"), ROWS[:1])
    Path("twice.jsonl").write_text('{"text": "T", "data": {"hotel": "A", "hotel": "B"}}', "utf-8")
    Path("base", "model.safetensors").rename(Path("base", "checkpoint-9"))
    result = pasta(*command, *words)
    assert message in result.err
    assert (result.code in (2, 3), result.out, Path("out").exists()) == (True, "", False)
