"""Answers that must match a schema, and parts that are decoded at the same time."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel

from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.request import Answer, Request, SamplingParams, StructuredOutputs
from pasta_lm.errors import RequestError, UsageError
from pasta_lm.strategies import parts, sequential
from pasta_lm.strategies.model import Pasta
from tests.architectures import ARCHITECTURES, loaded
from tests.fakes.guessers import FunctionGuesser
from tests.programs import words_of
from tests.taught import VOCABULARIES

pytest.importorskip("llguidance")

BOOKING: dict[str, Any] = {
    "type": "object",
    "properties": {
        "hotel": {"enum": ["Aurora", "Sol", 'the "Best"']},
        "nights": {"type": "integer", "minimum": 1, "maximum": 30},
        "paid": {"type": "boolean"},
        "guest": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 4},
                "tag": {"$ref": "#/$defs/t"},
            },
        },
        "beds": {"type": "array", "items": {"enum": [1, 2]}, "minItems": 1, "maxItems": 2},
    },
    "required": ["hotel", "nights", "paid", "guest", "beds"],
    "additionalProperties": False,
    "$defs": {"t": {"enum": ["a", "b"]}},
}
DRAWN = SamplingParams(max_tokens=300, temperature=1.0)


def model(name: str = "llama", **settings: Any) -> Pasta:
    return Pasta(TorchEngine(loaded(name), pool_tokens=4096, **settings))


def prompt(name: str, length: int = 9) -> list[int]:
    return random.Random(2).choices(words_of(loaded(name).vocabulary).text, k=length)


def tokens_of(answer: Answer, thread: int) -> list[int | None]:
    return [token.token for token in answer.trace.tokens_of(thread) if not token.is_forced]


# --- one thread under a schema


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("paged", [True, False])
def test_a_random_model_writes_what_matches(seed: int, paged: bool) -> None:
    params = replace(DRAWN, seed=seed, structured_outputs=StructuredOutputs(json=BOOKING))
    request = sequential.request(prompt("llama"), params)
    ((answer,),) = TorchEngine(loaded("llama"), pool_tokens=4096, paged=paged).generate([request])
    if answer.finish_reason == "stop":
        value = json.loads(answer.text)
        assert value.keys() == BOOKING["properties"].keys()
        assert value["hotel"] in BOOKING["properties"]["hotel"]["enum"]
        assert 1 <= value["nights"] <= 30
    else:
        assert answer.finish_reason == "length"


@pytest.mark.parametrize(
    ("wanted", "pattern"),
    [
        ({"regex": "[0-9]{3}-[a-z]{2}"}, "[0-9]{3}-[a-z]{2}"),
        ({"choice": ("yes", 'a "no"', "né")}, '(yes|a "no"|né)'),
        ({"grammar": 'start: "x" /[ab]/+ "y"'}, "x[ab]+y"),
        ({"json": {"type": "boolean"}}, r"\s*(true|false)\s*"),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_text_matches_what_is_asked_for(
    wanted: dict[str, Any], pattern: str, temperature: float
) -> None:
    params = replace(DRAWN, temperature=temperature, seed=1, max_tokens=60)
    params = replace(params, structured_outputs=StructuredOutputs(**wanted))
    ((answer,),) = model().engine.generate([sequential.request(prompt("llama"), params)])
    assert answer.finish_reason == "length" or re.fullmatch(pattern, answer.text)


def test_guesses_change_no_token_of_an_answer_under_a_schema() -> None:
    params = replace(DRAWN, seed=3, structured_outputs=StructuredOutputs(json=BOOKING))
    engine = model().engine
    alone = sequential.request(prompt("llama"), params)
    ((expected,),) = engine.generate([alone])
    right = tokens_of(expected, 0)

    def guess(written: Any) -> Any:
        known = right[len(written) - 9 :]
        return [*known[:2], *prompt("llama", 2)]  # right ones, then nonsense

    ((answer,),) = engine.generate([replace(alone, guesser=FunctionGuesser(guess))])
    assert tokens_of(answer, 0) == right
    assert answer.trace.forward_passes < expected.trace.forward_passes


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [({"json": {"type": "foo"}}, "JSON schema of the answer cannot be used: Invalid type: foo"),
     ({"regex": "(["}, "regex of the answer cannot be used"),
     ({"grammar": "begin: x"}, "grammar of the answer cannot be used")],
)  # fmt: skip
def test_what_cannot_be_compiled_is_refused_before_anything_is_decoded(
    wanted: dict[str, Any], reason: str
) -> None:
    engine = model().engine
    params = replace(DRAWN, structured_outputs=StructuredOutputs(**wanted))
    with pytest.raises(UsageError, match=reason):
        engine.submit(sequential.request(prompt("llama"), params))
    assert not engine.has_work


@pytest.mark.parametrize("wanted", [{}, {"json": {}, "regex": "a"}, {"choice": ()}])
def test_structured_outputs_say_one_thing(wanted: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="structured outputs have"):
        StructuredOutputs(**wanted)


def test_one_schema_holds_for_no_answer_of_several_threads() -> None:
    params = replace(DRAWN, structured_outputs=StructuredOutputs(regex="a"))
    with pytest.raises(RequestError, match="several threads"):
        model().engine.submit(Request(prompt=prompt("llama"), params=params))


# --- parts


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("kind", ["fill", "ask"])
def test_each_part_is_a_sequential_answer_to_what_it_sees(name: str, kind: str) -> None:
    vocabulary, engine = loaded(name).vocabulary, model(name).engine
    params = SamplingParams(max_tokens=120)
    if kind == "fill":
        request = parts.fill_request("Book a room.", BOOKING, vocabulary, params)
    else:
        questions = ["Who came?", "Where?", "Why was he there?"]
        request = parts.ask_request("Ada came to London.", questions, vocabulary, params)
    ((answer,),) = engine.generate([request])
    starts = request.expansion.starts("")  # type: ignore[union-attr]
    assert len(starts) == len(answer.trace.threads) - 1 > 2
    for number, start in enumerate(starts, start=1):
        alone = replace(params, structured_outputs=start.structured_outputs)
        seen = [*request.prompt, *start.prefix]
        ((expected,),) = engine.generate([sequential.request(seen, alone)])
        ours = tokens_of(answer, number)
        assert ours == tokens_of(expected, 0)[: len(ours)]
        if answer.trace.threads[number].finish_reason == "stop":
            assert len(ours) >= len(tokens_of(expected, 0)) - 1


def test_a_question_is_asked_in_a_message_of_its_own_behind_the_document() -> None:
    vocabulary = VOCABULARIES["byte_level"]
    questions = ["Who came?", "Where?"]
    request = parts.ask_request("Ada came.", questions, vocabulary, SamplingParams())
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


def test_a_pydantic_model_gives_an_instance() -> None:
    answer = model().fill("Book.", Booking, temperature=1.0, seed=4, max_tokens=200)
    assert isinstance(answer.data, Booking)


def test_a_part_that_a_limit_cuts_is_named_and_the_others_are_kept() -> None:
    schema = {"properties": {"long": {"type": "string", "minLength": 90}, "ok": {"enum": [True]}}}
    answer = model().fill("Book a room.", schema, max_tokens=20)
    assert (answer.unfinished, answer.data) == (("long",), {"ok": True})
    with pytest.raises(RequestError, match="a limit cut"):
        model().fill("Book.", type("Long", (Booking,), {}), max_tokens=1)


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
        ({"properties": {"m": {"type": "object", "additionalProperties": {}}}}, ["m"]),
        ({"properties": {"o": {"properties": {"x": {}, "y": {}}, "oneOf": [{}]}}}, ["o"]),
    ],
)  # fmt: skip
def test_fields_are_the_values_of_fixed_keys(schema: dict[str, Any], names: list[str]) -> None:
    assert [field.name for field in parts.fields_of(schema)] == names


@pytest.mark.parametrize(
    ("schema", "reason"),
    [({"type": "integer"}, "so it has no parts"), ({"properties": {}}, "so it has no parts"),
     ({"properties": {"a": {}}, "not": {}}, "no parts"), (BOOKING | {"required": ["b"]}, "parts"),
     ({"properties": {str(n): {} for n in range(65)}}, "65 parts, but at most 64"),
     ({"properties": {"a": {"type": "foo"}}}, "Invalid type: foo")],
)  # fmt: skip
def test_a_schema_without_usable_parts_is_refused(schema: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        model().fill("Book a room.", schema)


def test_the_mask_allows_what_matches_and_the_end_where_it_may_stand() -> None:
    whole = loaded("llama")
    wanted = StructuredOutputs(choice=("ab", "abc"))
    matcher = model().engine.grammars.matcher(wanted)  # type: ignore[attr-defined]
    a, b, c = (whole.vocabulary.encode_text(letter)[0] for letter in "abc")
    ends = sorted(whole.eos_ids)
    assert matcher.allowed()[a]
    assert not matcher.allowed()[[b, *ends]].any()
    assert matcher.allowed([a, b])[[c, *ends]].all()
    matcher.consume(a)
    matcher.consume(b)
    assert matcher.allowed()[c]
    assert matcher.allowed()[ends].all()
    assert matcher.allowed([a]).all(), "behind a wrong guess nothing is used"
    matcher.consume(c)
    assert matcher.is_complete
