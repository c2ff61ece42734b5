"""Parts that are decoded at the same time: each is a sequential answer to what it sees."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from pydantic import BaseModel, field_validator

from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.passes.sampling import Choice, TokenMasks, choose, uniform_number
from pasta_lm.engines.request import Answer, SamplingParams, StructuredOutputs
from pasta_lm.errors import ContextLengthError, InvalidAnswerError, UsageError
from pasta_lm.interpreter.interpreter import PLAIN_TEXT
from pasta_lm.parts import declared as parts
from pasta_lm.parts.fields import Part, fields_of
from pasta_lm.parts.form import SchemaForm
from pasta_lm.parts.questions import ask_request
from pasta_lm.strategies.model import Pasta
from pasta_lm.strategies.requests import sequential_request
from pasta_lm.view.run_data import critical_tokens
from tests.architectures import every_architecture, loaded, own_attention
from tests.engines.local.test_grammars import BOOKING, model, tokens_of
from tests.parts.test_form import DEEP, FAN
from tests.taught import VOCABULARIES

llguidance = pytest.importorskip("llguidance")

PROMPT = "Book a room for Ada."
GREEDY = SamplingParams(max_tokens=120, ignore_eos=True)
DRAWN = replace(GREEDY, temperature=0.9, top_p=0.9, seed=5)
HOLES = (  # of fixed lengths: no token goes on behind the end of its part
    Part(name="who", lead="Who: ", max_tokens=5),
    Part(name="when", lead=". When: ", max_tokens=7),
    Part(name="where", lead=". Where: ", max_tokens=4, after=("who",)),
    Part(name="why", lead=". Why: ", max_tokens=6, after=("when", "where")),
    Part(name="how", lead="", max_tokens=5),
)
SEEN = {  # written down by hand: given text, and the parts whose tokens stand in it
    "who": ["Who: "],
    "when": [". When: "],
    "where": ["Who: ", "who", ". Where: "],
    "why": ["Who: ", "who", ". When: ", "when", ". Where: ", "where", ". Why: "],
    "how": [],
}


def decode(name: str, holes: Sequence[Part], params: SamplingParams, **settings: Any) -> Answer:
    engine = model(name, **settings).engine
    request = parts.parts_request(PROMPT, holes, loaded(name).vocabulary, params)
    return engine.generate([request])[0][0]


def plain_tokens(
    name: str, seen: Sequence[int], decoded: Sequence[int], path: tuple[int, ...], how: Any
) -> list[int]:
    whole = loaded(name)
    masks = TokenMasks(whole.vocabulary, whole.eos_ids, whole.vocab_size, torch.device("cpu"))
    with own_attention(whole), torch.inference_mode():
        ids = torch.tensor([[*seen, *decoded[:-1]]])
        logits = whole.model(input_ids=ids).logits[0, len(seen) - 1 :].float()
    numbers = [uniform_number(how.seed, 0, path, index) for index in range(len(decoded))]
    return choose(logits, [Choice(how, PLAIN_TEXT, number) for number in numbers], masks)


@pytest.mark.parametrize("how", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@every_architecture
def test_each_part_is_a_plain_causal_answer_to_what_it_sees(name: str, how: SamplingParams) -> None:
    vocabulary, answer = loaded(name).vocabulary, decode(name, HOLES, how)
    decoded = {part.name: tokens_of(answer, n) for n, part in enumerate(HOLES, start=1)}
    for number, part in enumerate(HOLES, start=1):
        seen = [*vocabulary.encode_prompt(PROMPT)]
        for piece in SEEN[part.name]:
            seen += decoded.get(piece) or vocabulary.encode_text(piece)
        ours = decoded[part.name]
        assert len(ours) == part.max_tokens
        assert ours == plain_tokens(name, seen, ours, (number,), how)


@pytest.mark.parametrize("name", ["llama", "qwen3"])
@pytest.mark.parametrize("kind", ["fill", "ask"])
def test_fields_and_questions_are_sequential_answers_under_the_same_schema(
    name: str, kind: str
) -> None:
    vocabulary, engine = loaded(name).vocabulary, model(name).engine
    params = SamplingParams(max_tokens=120)
    if kind == "fill":
        messages = [{"role": "user", "content": "Book a room."}]
        nights = BOOKING["properties"]["nights"] | {"description": "Of the stay."}
        described = BOOKING | {"properties": BOOKING["properties"] | {"nights": nights}}
        request = parts.fill_request(messages, described, vocabulary, params)
        messages[0]["content"] += f"\n\nForm: {SchemaForm(described).text}"
        assert [*request.prompt] == vocabulary.encode_prompt(messages)
    else:
        questions = ["Who came?", "Where?", "Why was he there?"]
        request = ask_request("Ada came to London.", questions, vocabulary, params)
    ((answer,),) = engine.generate([request])
    starts = request.expansion.starts("")  # type: ignore[union-attr]
    assert len(starts) == len(answer.trace.threads) - 1 > 2
    for number, start in enumerate(starts, start=1):
        alone = replace(params, structured_outputs=start.structured_outputs)
        seen = [*request.prompt, *start.prefix]
        ((expected,),) = engine.generate([sequential_request(seen, alone)])
        ours = tokens_of(answer, number)
        assert ours == tokens_of(expected, 0)[: len(ours)]
        if answer.trace.threads[number].finish_reason == "stop":
            assert len(ours) >= len(tokens_of(expected, 0)) - 1


@every_architecture
def test_a_chain_of_parts_is_one_sequential_answer_and_computes_nothing_twice(name: str) -> None:
    names = ["a", "b", "c", "d"]
    chain = [
        Part(name=part, max_tokens=n + 3, after=tuple(names[max(0, n - 1) : n]))
        for n, part in enumerate(names)
    ]
    answer, engine = decode(name, chain, GREEDY), model(name).engine
    ids = loaded(name).vocabulary.encode_prompt(PROMPT)
    alone = sequential_request(ids, replace(GREEDY, max_tokens=18))
    ((expected,),) = engine.generate([alone])
    ours = [token for thread in range(1, 5) for token in tokens_of(answer, thread)]
    assert ours == tokens_of(expected, 0)
    assert answer.trace.critical_path == expected.trace.critical_path + 1  # main ended first
    assert len(answer.trace.tokens) == 18 + len(chain), "each begins with one token"
    paged = decode(name, chain, GREEDY, paged=True)
    assert [tokens_of(paged, n) for n in range(5)] == [tokens_of(answer, n) for n in range(5)]


def text_seen(part: str, **how: Any) -> str:
    """Return the given text that a field of a booking sees, others filled with their names."""
    vocabulary = loaded("llama").vocabulary
    request = parts.fill_request("", BOOKING, vocabulary, GREEDY, **how)
    assert request.expansion is not None
    starts = request.expansion.known
    start = next(start for start in starts if start.topic == part)
    if start.behind is None:
        return vocabulary.text(start.prefix)
    values = [f' "{starts[index].topic}",' for index in start.after]
    return vocabulary.text(start.behind([vocabulary.encode_text(value) for value in values]))


@pytest.mark.parametrize(
    ("part", "how", "expected"),
    [
        ("guest.tag", {}, '{"guest": {"tag":'),
        ("beds", {"after": {"beds": ["hotel"]}}, '{"hotel": "hotel", "beds":'),
        ("beds", {"after": {"beds": ["guest"]}},
         '{"guest": {"name": "guest.name", "tag": "guest.tag"}, "beds":'),
        ("guest.name", {"after": {"guest": ["paid"], "paid": ["nights"]}},
         '{"nights": "nights", "paid": "paid", "guest": {"name":'),
        ("hotel", {"after": {"hotel": ["beds"]}}, '{"beds": "beds", "hotel":'),
        ("paid", {"after": {"paid": ["hotel"]}}, '{"hotel": "hotel", "paid":'),
    ],
)  # fmt: skip
def test_a_field_sees_its_own_key_and_the_keys_and_values_that_it_waits_for(
    part: str, how: Mapping[str, Any], expected: str
) -> None:
    assert text_seen(part, **how) == expected


def test_a_part_begins_when_those_that_it_waits_for_have_ended() -> None:
    trace = decode("llama", HOLES, GREEDY).trace
    first, last = (
        {t.id: getattr(t, end) for t in trace.threads} for end in ("start_step", "end_step")
    )
    assert first[1] == first[2] == first[5]
    assert first[3] == last[1] + 1 == 5
    assert first[4] == last[3] + 1
    assert trace.forward_passes == trace.critical_path
    chain = critical_tokens(trace)
    assert [token.depth for token in chain] == sorted((t.depth for t in chain), reverse=True)  # type: ignore[type-var]
    assert {token.depth for token in chain} == set(range(1, trace.critical_path + 1))
    assert [sync.joined for sync in trace.syncs] == [[1], [1, 2, 3]]


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ({"regex": "[ab]{3}"}, "[ab]{3}"),
        ({"regex": "[0-9]{1,3}", "stop": (",", ";")}, "[0-9]{1,3}"),
        ({"schema": {"type": "integer", "minimum": 10, "maximum": 99}}, " ?[0-9]{2}"),
        ({"max_tokens": 3}, None),
        ({"end_of_text": True, "max_tokens": 9}, None),
    ],
)
def test_a_part_ends_where_it_says_and_the_next_one_reads_on(
    end: Mapping[str, Any], expected: str | None
) -> None:
    holes = [
        Part(name="x", lead="X: ", **end),
        Part(name="y", lead="; Y: ", max_tokens=2, after=("x",)),
    ]
    answer = decode("llama", holes, replace(DRAWN, ignore_eos=False))
    found = parts.assembled(answer, holes, loaded("llama").vocabulary)
    assert found.unfinished == ()
    blocks = [block.plain_text for block in answer.document.blocks]
    text = blocks[0] if expected is None else re.match(expected, blocks[0])[0]  # type: ignore[index]
    assert found.text == f"X: {text}; Y: {blocks[1]}"
    assert str(found.data["x"]) == text.strip()


def test_a_question_is_asked_in_a_message_of_its_own_behind_the_document() -> None:
    vocabulary = VOCABULARIES["byte_level"]
    questions = ["Who came?", "Where?"]
    request = ask_request("Ada came.", questions, vocabulary, SamplingParams())
    starts = request.expansion.starts("")  # type: ignore[union-attr]
    for start, question in zip(starts, questions, strict=True):
        content = f"Ada came.\n\n{question}"
        expected = vocabulary.encode_prompt([{"role": "user", "content": content}])
        assert [*request.prompt, *start.prefix] == expected
    assert len(request.prompt) > 3


def test_the_fields_of_a_schema_are_filled_and_match_it() -> None:
    answer = model().fill("Book a room.", BOOKING, max_tokens=500, temperature=1.0, seed=1)
    assert (list(answer.data), answer.unfinished) == (list(BOOKING["properties"]), ())
    assert list(answer.data["guest"]) == ["name", "tag"]
    assert answer.data["guest"]["tag"] in ("a", "b")
    assert json.loads(answer.text) == answer.data
    longest = max(len(answer.trace.tokens_of(n)) for n in range(len(answer.trace.threads)))
    assert answer.trace.forward_passes <= longest + 2


class Booking(BaseModel):
    nights: int
    paid: bool


@pytest.mark.parametrize(
    ("call", "keywords", "expected"),
    [
        ("generate", {}, 1.3),
        ("generate", {"structured_outputs": StructuredOutputs(choice=("a", "b"))}, 1.0),
        ("generate", {"structured_outputs": StructuredOutputs(json=BOOKING)}, 1.0),
        ("fill", {"schema": BOOKING}, 1.0),
        ("fill", {"parts": [Part(name="a", max_tokens=2)]}, 1.0),
        ("ask", {"questions": ["Who?"]}, 1.0),
    ],
)
def test_a_model_s_own_penalty_is_for_free_text_and_that_of_a_request_for_all(
    call: str, keywords: dict[str, Any], expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = replace(loaded("llama"))
    whole.sampling = {"repetition_penalty": 1.3, "top_k": 9}
    pasta, params = Pasta(TorchEngine(whole, pool_tokens=4096)), list[SamplingParams]()
    decoded = pasta.engine.generate
    watched = lambda found: params.extend(each.params for each in found) or decoded(found)  # noqa: E731
    monkeypatch.setattr(pasta.engine, "generate", watched)
    for changes in ({}, {"repetition_penalty": 1.2}, {"frequency_penalty": 0.5}):
        getattr(pasta, call)("Ada came.", **keywords, **changes, max_tokens=9)
    assert [(each.repetition_penalty, each.top_k) for each in params] == [
        (expected, 9), (1.2, 9), (expected, 9),
    ]  # fmt: skip
    assert params[2].frequency_penalty == 0.5


def test_a_pydantic_model_gives_an_instance() -> None:
    answer = model().fill("Book.", Booking, temperature=1.0, seed=4, max_tokens=200)
    assert isinstance(answer.data, Booking)
    listed = model().fill("Book.", "nights int, paid bool", temperature=1.0, seed=4, max_tokens=200)
    assert listed.data == answer.data.model_dump()


class Strict(Booking):
    @field_validator("nights")
    @classmethod
    def none_is_right(cls, nights: int) -> int:
        raise ValueError(f"{nights} nights are too many")


@pytest.mark.parametrize(("max_tokens", "reason"), [(200, "no Strict: .*too many"), (1, "cut or")])
def test_data_that_a_class_refuses_are_kept(max_tokens: int, reason: str) -> None:
    with pytest.raises(InvalidAnswerError, match=f"(?s){reason}") as caught:
        model().fill("Book.", Strict, temperature=1.0, seed=4, max_tokens=max_tokens)
    assert json.loads(caught.value.text) == caught.value.data
    assert ("nights" in caught.value.data) is (max_tokens > 1)


def test_a_part_that_a_limit_cuts_is_named_and_the_others_are_kept() -> None:
    schema = {"properties": {"long": {"type": "string", "minLength": 90}, "ok": {"enum": [True]}}}
    answer = model().fill("Book a room.", schema, max_tokens=20)
    assert (answer.unfinished, answer.data) == (("long",), {"ok": True})


def test_questions_are_answered_in_their_order_and_cut_ones_are_named() -> None:
    answer = model().ask("Ada came.", ["Who?", "Where?"], max_tokens=40, temperature=1.0, seed=2)
    assert (len(answer.data), answer.text) == (2, "\n\n".join(answer.data))
    assert set(answer.unfinished) <= {"Who?", "Where?"}
    with pytest.raises(UsageError, match="no questions"):
        model().ask("Ada came.", [])


@pytest.mark.parametrize(
    ("schema", "names"),
    [
        ({"properties": {"a": True, "b": {"anyOf": [{"type": "null"}]}}}, ["a", "b"]),
        ({"properties": {"o": {"$ref": "#/$defs/o"}},
          "$defs": {"o": {"properties": {"x": {"type": "integer"}, "o": {"$ref": "#/$defs/o"}}}}},
         ["o.x", "o.o"]),
        ({"$ref": "#/definitions/a~1b", "definitions": {"a/b": {"properties": {"x": {}}}}}, ["x"]),
        ({"properties": {"x": {}}, "definitions": {"unused": {"not": {}}}}, ["x"]),
        ({"properties": {"a.b": {}, "a": {"properties": {"b": {}}}}}, ['"a.b"', "a.b"]),
        ({"properties": {"m": {"type": "object", "additionalProperties": {}}}}, ["m"]),
        ({"properties": {"o": {"properties": {"x": {}, "y": {}}, "oneOf": [{}]}}}, ["o"]),
    ],
)  # fmt: skip
def test_fields_are_the_values_of_fixed_keys(schema: dict[str, Any], names: list[str]) -> None:
    assert [field.name for field in fields_of(schema)] == names


@pytest.mark.parametrize("bound", [{"max_tokens": 8}, {"max_tokens_per_thread": 9}])
def test_a_part_behind_one_that_a_limit_cut_does_not_begin(bound: Mapping[str, int]) -> None:
    holes = [
        Part(name="long", lead="L: ", schema={"type": "string", "minLength": 99}),
        Part(name="short", lead="S: ", max_tokens=2),
        Part(name="last", lead="E: ", max_tokens=2, after=("long",)),
    ]
    answer = decode("llama", holes, replace(DRAWN, **bound))  # type: ignore[arg-type]
    found = parts.assembled(answer, holes, loaded("llama").vocabulary)
    assert (found.unfinished, list(found.data)) == (("long", "last"), ["short", "last"])
    assert found.data["last"] == ""
    assert len(tokens_of(answer, 2)) == 2


def test_samples_and_log_probabilities_of_parts_are_those_of_every_request() -> None:
    params = replace(DRAWN, n=2, logprobs=2)
    request = parts.parts_request(PROMPT, HOLES, loaded("llama").vocabulary, params)
    engine = model().engine
    (samples,) = engine.generate([request])
    ours = [[tokens_of(sample, n) for n in range(1, 6)] for sample in samples]
    assert ours[0] != ours[1]
    assert ours[0] == [tokens_of(decode("llama", HOLES, DRAWN), n) for n in range(1, 6)]
    for number in range(1, 6):
        tokens = samples[0].trace.tokens_of(number)
        decoded = [i for i, token in enumerate(tokens) if not token.is_forced]
        assert all(samples[0].logprobs[number, index].top for index in decoded)
    number = engine.submit(request)
    engine.step()
    engine.cancel(number)
    assert not engine.has_work


def test_tags_in_given_text_are_text_and_an_end_of_text_is_as_good_as_a_stop_string() -> None:
    whole, lead = loaded("llama"), 'A <sync/> <promise topic="x" tokens="1"/><async>: '
    params = replace(GREEDY, ignore_eos=False, logit_bias=dict.fromkeys(whole.eos_ids, 1e4))
    answer = decode("llama", [Part(name="x", lead=lead, stop="\n")], params)
    assert (len(answer.trace.threads), answer.trace.num_illegal) == (2, 0)
    assert answer.trace.threads[1].finish_reason == "stop"
    assert (
        parts.assembled(answer, [Part(name="x", lead=lead, stop="\n")], whole.vocabulary).text
        == lead
    )


def test_a_schema_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Mock(wraps=llguidance.LLMatcher)
    monkeypatch.setattr("pasta_lm.engines.grammars.LLMatcher", counted)
    schema = {"properties": {"a": {"enum": [1]}, "b": {"enum": [1]}, "c": {"enum": [2]}}}
    assert model().fill(PROMPT, schema, n=2).data == {"a": 1, "b": 1, "c": 2}
    assert counted.call_count == 2, "the same schema of two fields is one"


TWO = (Part(name="a", max_tokens=1), Part(name="b", max_tokens=1, after=("a",)))


@pytest.mark.parametrize(
    ("holes", "reason"),
    [
        ([Part(name="a", lead="A: ")], "nothing ends part 'a'"),
        ([*TWO, TWO[0]], "two parts have the name 'a'"),
        ([replace(TWO[0], after=("b",)), TWO[1]], "wait for each other: a after b after a"),
        ([replace(TWO[0], after=("a",))], "wait for each other: a after a"),
        ([TWO[0], replace(TWO[1], after=("c",))], "no part is named 'c'"),
        ([Part(name="a", regex="x", schema={})], "exactly one of"),
        ([Part(name=str(n), max_tokens=1) for n in range(65)], "65 parts, but at most 64"),
        ([], "a schema or parts"),
    ],
)
def test_holes_that_cannot_be_filled_are_refused(holes: list[Part], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        model().fill(PROMPT, parts=holes)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [({"type": "integer"}, "type is 'integer', not 'object'.* so it has no parts"),
     ({"type": "OBJECT", "properties": {"a": {}}}, "type is 'OBJECT'.* so it has no parts"),
     ({"properties": {}}, "properties are {}"), ({"properties": []}, r"properties are \[\]"),
     ({"properties": {"a": False}}, "'a' is forbidden.* no parts"),
     ({"properties": {"a": {"$ref": "#"}}}, "refers to '#', not to .* no parts"),
     ({"properties": {"a": {"items": {"$ref": "b.json#/a"}}}}, r"'b.json#/a'(?s:.*)put the def"),
     ({"$ref": "#/$defs/a"}, "'#/[$]defs/a', which is not there"),
     ({"$ref": "#/$defs/a", "$defs": {"a": {}}, "not": {}}, "not stands beside [$]ref"),
     ({"properties": {"a": {"maximum": 2**53, "type": "integer"}}}, "part 'a': .* maximum has the"),
     ({"properties": {"a": {"x-guidance": {"lenient": True}, "not": {}}}}, "no options"),
     ({"$schema": "http://json-schema.org/draft-03/schema#", "properties": {"a": {}}}, "draft 3"),
     ({"properties": {"a": {}}, "not": {}}, "not is a rule over"),
     (BOOKING | {"required": ["b"]}, "required has .*'b'.* no parts"),
     ({"properties": {str(n): {} for n in range(65)}}, "65 parts, but at most 64"),
     ({"properties": {"a": {"type": "foo"}}}, "^part 'a': .* used: no such type 'foo'\\n"),
     ({"properties": {"a": 3}}, "is 3, which is no schema.* no parts"), (FAN, "4097 parts, but"),
     ({"properties": {"a": {}}, "required": 5}, "required has 5"), (DEEP, "recursion limit"),
     ({"properties": {"a": {}}, "required": [["a"]]}, "required has .*'a'"),
     ({"type": {}}, "type is {}, not 'object'"),
     ({"properties": {"a": {"$ref": "#/$defs/0"}}, "$defs": {"0": 1}}, "object or boolean")],
)  # fmt: skip
def test_a_schema_without_usable_parts_is_refused(schema: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        model().fill("Book a room.", schema)


@pytest.mark.parametrize("lead", ["word " * 3000, ""])
def test_given_text_that_fills_the_context_is_refused_before_anything_is_decoded(lead: str) -> None:
    engine, prompt = model().engine, PROMPT if lead else "word " * 2040
    holes = [Part(name="a", lead=lead, max_tokens=1)]
    request = parts.parts_request(prompt, holes, loaded("llama").vocabulary, GREEDY)
    with pytest.raises(ContextLengthError):
        engine.submit(request)
    assert not engine.has_work
