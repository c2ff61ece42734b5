"""Answers that must match a schema."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import LogitsProcessor, PreTrainedTokenizerFast

from pasta_lm.engines.grammars import Grammars
from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.request import Answer, Request, SamplingParams, StructuredOutputs
from pasta_lm.engines.schemas import FLEXIBLE, compact_schema
from pasta_lm.errors import RequestError, UsageError
from pasta_lm.language.tags import PIECES
from pasta_lm.models.vocabulary import Vocabulary
from pasta_lm.serve.tool_calls import Function, ToolTemplate
from pasta_lm.strategies.model import Pasta
from pasta_lm.strategies.requests import sequential_request
from tests.architectures import loaded, own_attention
from tests.programs import words_of
from tests.small_tokenizers import FAMILIES, TEXT, add_markers

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
            "additionalProperties": False,
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


@pytest.mark.parametrize("paged", [True, False])
def test_a_random_model_writes_what_matches(paged: bool) -> None:
    params = replace(DRAWN, n=6, seed=0, structured_outputs=StructuredOutputs(json=BOOKING))
    request = sequential_request(prompt("llama"), params)
    (answers,) = TorchEngine(loaded("llama"), pool_tokens=4096, paged=paged).generate([request])
    assert [answer.finish_reason for answer in answers] == ["stop"] * 6
    for value in [json.loads(answer.text) for answer in answers]:
        assert value.keys() == BOOKING["properties"].keys()
        assert value["hotel"] in BOOKING["properties"]["hotel"]["enum"]
        assert 1 <= value["nights"] <= 30


@pytest.mark.parametrize(
    ("wanted", "pattern"),
    [
        ({"regex": "[0-9]{3}-[a-z]{2}"}, "[0-9]{3}-[a-z]{2}"),
        ({"choice": ("yes", 'a "no"', "né")}, '(yes|a "no"|né)'),
        ({"grammar": 'start: "x" /[ab]/+ "y"'}, "x[ab]+y"),
        ({"json": {"type": "boolean"}}, "true|false"),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_text_matches_what_is_asked_for(
    wanted: dict[str, Any], pattern: str, temperature: float
) -> None:
    params = replace(DRAWN, temperature=temperature, seed=1, max_tokens=60)
    params = replace(params, structured_outputs=StructuredOutputs(**wanted))
    ((answer,),) = model().engine.generate([sequential_request(prompt("llama"), params)])
    assert answer.finish_reason == "stop"
    assert re.fullmatch(pattern, answer.text)


def matches(wanted: dict[str, Any], text: str) -> bool:
    matcher = model().engine.grammars.matcher(StructuredOutputs(**wanted))  # type: ignore[attr-defined]
    for token in loaded("llama").vocabulary.encode_text(text):
        if not matcher.allows(token):
            return False
        matcher.consume(token)
    return bool(matcher.allowed()[sorted(loaded("llama").eos_ids)].all())


PAIR: dict[str, Any] = {"properties": {"a": {"type": "integer"}, "b": {"items": {"enum": [1]}}}}
PAIR |= {"type": "object", "required": ["a", "b"], "additionalProperties": False}
ANY = {"properties": {"a": {}}, "required": ["a"], "additionalProperties": False, "type": "object"}
CALLS = ToolTemplate(True, "arguments").calls([Function(name="f", parameters=PAIR)], is_single=True)
COMPACT_TEXTS = ['{"a": 1, "b": [1, 1]}', '{"a":1,"b":[1,1]}', '{"a":1, "b":[1]}']
SPACED = [
    '{"a":  1, "b": []}',
    '{ "a": 1, "b": []}',
    '{"a": 1,\n"b": [ 1 ]}',
    '{"a": 1, "b": []\n}',
]


@pytest.mark.parametrize(
    ("wanted", "right", "wrong"),
    [
        ({"json": PAIR}, COMPACT_TEXTS, SPACED),
        ({"json": {**PAIR, "x-guidance": {"whitespace_flexible": False}}}, COMPACT_TEXTS, SPACED),
        ({"json": {**PAIR, "x-guidance": FLEXIBLE}}, [*COMPACT_TEXTS, *SPACED], []),
        ({"json": PAIR, "is_inside": True}, [f" {text}," for text in COMPACT_TEXTS], SPACED),
        ({"json": ANY}, ['{"a": {"b": [1, {}]}}', '{"a":[1,"  "]}'], ['{"a": [ ]}', '{"a":\n1}']),
        ({"grammar": CALLS.grammar}, [f'{{"name": "f", "arguments": {t}}}' for t in COMPACT_TEXTS],
         [f'{{"name": "f", "arguments": {t}}}' for t in SPACED]),
    ],
)  # fmt: skip
def test_white_space_has_an_end_unless_a_schema_asks_for_any(
    wanted: dict[str, Any], right: list[str], wrong: list[str]
) -> None:
    assert [text for text in (*right, *wrong) if matches(wanted, text)] == right


LARGE = 2**53
DAYS = ("2024-02-29", "2000-02-29", "2023-02-28", "2023-12-29", "2023-03-29", "2023-02-19")


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "integer", "maximum": LARGE - 1, "default": LARGE + 1}, [f"{LARGE - 1}"],
         [f"{LARGE}"]),
        ({"const": LARGE + 2}, [f"{LARGE + 2}"], [f"{LARGE + 1}"]),
        ({"type": "string", "format": "date"}, [f'"{day}"' for day in DAYS],
         ['"2023-02-29"', '"2100-02-29"', '"2023-04-31"']),
        ({"type": "string", "format": "date-time"}, [f'"{day}T23:59:59Z"' for day in DAYS],
         ['"2026-01-02T23:59:60Z"', '"two"', '"2023-02-29T01:00:00Z"']),
        ({"type": ["string", "null"], "format": "time", "allOf": [{"minLength": 10}]},
         ['"23:59:59.5Z"', "null"], ['"23:59:60.5Z"', '"23:59:59Z"']),
        ({"type": "string", "format": "password"}, ['"a b"'], ["1"]),
        ({"type": "string", "pattern": "^\\d$"}, ['"1"'], ['"\u0662"']),
        ({"properties": {"format": {"format": "path"}, "minimum": {"const": 1}}, "type": "object"},
         ['{"format":"/", "minimum":1}'], ['{"minimum":2}']),
    ],
)  # fmt: skip
def test_values_are_held_to_their_schema(
    schema: dict[str, Any], right: list[str], wrong: list[str]
) -> None:
    assert [text for text in (*right, *wrong) if matches({"json": schema}, text)] == right


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"minimum": LARGE + 1, "maximum": LARGE + 3, "type": "integer"}, "minimum has the number"),
        ({"properties": {"a": {"exclusiveMinimum": LARGE}}}, "exclusiveMinimum has the"),
        ({"multipleOf": LARGE + 1}, "multipleOf has"),
        ({"maximum": -LARGE, "type": "integer"}, "maximum has"),
        ({"maximum": float("inf")}, "maximum has"),
        ({"const": LARGE + 1}, "const has"),
        ({"items": {"enum": [{"x": [10**30 + 1]}]}}, "enum has"),
        ({"const": 10**400}, "const has"),
    ],
)
def test_numbers_that_a_double_cannot_hold_are_refused_by_key(
    schema: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        model().engine.grammars.matcher(StructuredOutputs(json=schema))  # type: ignore[attr-defined]


def test_escaped_digits_of_a_regular_expression_are_those_of_a_schema() -> None:
    for pattern, text in (("\\d", "1"), ("[\\d.]", "."), ("\\\\d", "\\d")):
        assert matches({"regex": pattern}, text)
        assert not matches({"regex": pattern}, "\u0662")


# --- forms and tokenizers


def trained(kind: Any, before: Any, decoder: Any, normalizer: Any = None) -> Any:
    """Return a function that makes a tokenizer of a family that is not in the shared ones."""

    def make() -> PreTrainedTokenizerFast:
        unknown = {} if kind in (models.BPE, models.Unigram) else {"unk_token": "[UNK]"}
        backend = Tokenizer(kind(**unknown))
        backend.pre_tokenizer, backend.decoder = before, decoder
        if normalizer is not None:
            backend.normalizer = normalizer
        trainer = backend.model.get_trainer()
        trainer.vocab_size, trainer.show_progress = 300, False
        trainer.special_tokens = [AddedToken("[UNK]"), AddedToken("<|end|>")]
        if isinstance(before, pre_tokenizers.ByteLevel):
            alphabet = pre_tokenizers.ByteLevel.alphabet()
            trainer.initial_alphabet = [x for x in alphabet if x not in "\xf1\xf2"]  # as SmolLM2
        backend.train_from_iterator(TEXT, trainer)
        return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>", **unknown)

    return make


WITH_SPACE, BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=True), decoders.ByteLevel()
READ = {
    **FAMILIES,
    "prefix space": trained(models.BPE, WITH_SPACE, BYTE_LEVEL),
    "changes text": trained(models.BPE, WITH_SPACE, BYTE_LEVEL, normalizers.BertNormalizer()),
}
REFUSED = {
    "Unigram": trained(models.Unigram, pre_tokenizers.Metaspace(), decoders.Metaspace()),
    "WordPiece": trained(models.WordPiece, pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()),
    "WordLevel": trained(models.WordLevel, pre_tokenizers.Whitespace(), decoders.Fuse()),
}
ADDED: list[list[AddedToken]] = [
    [],
    [AddedToken(text) for text in ("<tool_call>", '{"', '": "', '"}', '", "x')],
    [AddedToken(text, special=True) for text in ('"x"', "</s>x", "<async>b", "a<")],
    [AddedToken('{"n', lstrip=True, rstrip=True), AddedToken("a", single_word=True)],
]
AS_TEXT = ("<async>", "<|end|></s>[UNK]", '<tool_call>{"x": "\u65e5"}', "E\u0301 \u00c4")
CARD = {"properties": {"n": {"const": AS_TEXT[3]}, "x": {"const": AS_TEXT}}, "required": ["n", "x"]}


def forms_of(tokenizer: PreTrainedTokenizerFast) -> tuple[Vocabulary, Grammars]:
    vocabulary = Vocabulary(tokenizer, add_markers(tokenizer, PIECES))
    return vocabulary, Grammars(vocabulary, vocabulary.num_tokens, [tokenizer.eos_token_id])


@pytest.mark.parametrize("added", ADDED, ids=range(4))
@pytest.mark.parametrize("family", READ)
def test_text_of_a_form_is_text_however_the_tokenizer_would_cut_it(
    family: str, added: list[AddedToken]
) -> None:
    tokenizer, rng = READ[family](), random.Random(2)
    tokenizer.add_tokens(added, special_tokens=bool(added) and added[0].special)
    vocabulary, grammars = forms_of(tokenizer)
    whole = {"type": "object", "additionalProperties": False, **CARD}
    forms = [{"json": whole}, {"choice": AS_TEXT}, {"regex": "a<async>b"}]
    for wanted in (*forms, *({"json": {"const": text}} for text in AS_TEXT)):
        matcher, ids = grammars.matcher(StructuredOutputs(**wanted)), list[int]()
        while not matcher.is_complete:
            ids.append(rng.choice(matcher.allowed().nonzero()[:, 0].tolist()))
            matcher.consume(ids[-1])
        text = vocabulary.text(ids)
        if "json" in wanted:
            expected = wanted["json"].get("const", {"n": AS_TEXT[3], "x": [*AS_TEXT]})
            assert json.loads(text) == expected
        assert text in (*AS_TEXT, "a<async>b") or "json" in wanted
        assert not {*vocabulary.piece_ids.values()} & {*ids}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_tokenizer_that_cannot_write_every_text_is_refused_by_its_kind(kind: str) -> None:
    _, grammars = forms_of(REFUSED[kind]())
    with pytest.raises(RequestError, match=f"no form can be held with this tokenizer, a {kind}"):
        grammars.matcher(StructuredOutputs(regex="a"))


def test_where_a_form_leaves_no_token_none_is_taken() -> None:
    tag = loaded("llama").vocabulary.piece_id("<async>")
    params = replace(DRAWN, structured_outputs=StructuredOutputs(grammar=f'start: "a"? <[{tag}]>'))
    request = sequential_request(prompt("llama"), replace(params, temperature=0))
    with pytest.raises(RequestError, match="the form of the answer cannot be followed"):
        model().engine.generate([request])


class Masked(LogitsProcessor):
    """The mask of a schema in ``generate`` of transformers."""

    def __init__(self, name: str, num_prompt: int) -> None:
        whole, tools = loaded(name), pytest.importorskip("llguidance.hf")
        self.num_read, size = num_prompt, whole.vocab_size
        ends = sorted(whole.eos_ids)
        tokens = tools.from_tokenizer(whole.vocabulary.tokenizer, n_vocab=size, eos_token=ends)
        matching = pytest.importorskip("llguidance").LLMatcher
        self.matcher = matching(tokens, matching.grammar_from_json_schema(compact_schema(BOOKING)))

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        masks = pytest.importorskip("llguidance.numpy")  # torch's is compiled, for 40 s
        self.matcher.consume_tokens(input_ids[0, self.num_read :].tolist())
        self.num_read = input_ids.shape[1]
        mask = masks.allocate_token_bitmask(1, scores.shape[1])
        masks.fill_next_token_bitmask(self.matcher, mask)
        masks.apply_token_bitmask_inplace(scores.numpy(), mask)
        return scores


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
def test_the_mask_is_that_of_a_logits_processor_in_generate(name: str) -> None:
    whole, ids = loaded(name), prompt(name)
    params = SamplingParams(max_tokens=80, structured_outputs=StructuredOutputs(json=BOOKING))
    ((answer,),) = model(name).engine.generate([sequential_request(ids, params)])
    with own_attention(whole):
        (expected,) = whole.model.generate(
            torch.tensor([ids]),
            logits_processor=[Masked(name, len(ids))],
            max_new_tokens=80,
            do_sample=False,
            eos_token_id=sorted(whole.eos_ids),
        ).tolist()
    ours = tokens_of(answer, 0)
    assert len(ours) > 10
    assert expected[len(ids) :][: len(ours)] == ours
    assert {*expected[len(ids) + len(ours) :]} <= whole.eos_ids


def test_guesses_change_no_token_of_an_answer_under_a_schema() -> None:
    params = replace(DRAWN, seed=3, structured_outputs=StructuredOutputs(json=BOOKING))
    engine = model().engine
    alone = sequential_request(prompt("llama"), params)
    ((expected,),) = engine.generate([alone])
    right = tokens_of(expected, 0)

    def guess(written: Any) -> Any:
        known = right[len(written) - 9 :]
        return [*known[:2], *prompt("llama", 2)]  # right ones, then nonsense

    ((answer,),) = engine.generate([replace(alone, guesser=guess)])
    assert tokens_of(answer, 0) == right
    assert answer.trace.forward_passes < expected.trace.forward_passes


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [({"json": {"type": "foo"}}, "JSON schema of the answer cannot be used: no such type 'foo'"),
     ({"regex": "(["}, "regex of the answer cannot be used"),
     ({"grammar": "begin: x"}, "grammar of the answer cannot be used")],
)  # fmt: skip
def test_what_cannot_be_compiled_is_refused_before_anything_is_decoded(
    wanted: dict[str, Any], reason: str
) -> None:
    engine = model().engine
    params = replace(DRAWN, structured_outputs=StructuredOutputs(**wanted))
    with pytest.raises(UsageError, match=reason):
        engine.submit(sequential_request(prompt("llama"), params))
    assert not engine.has_work


@pytest.mark.parametrize("wanted", [{}, {"json": {}, "regex": "a"}, {"choice": ()}])
def test_structured_outputs_say_one_thing(wanted: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="structured outputs have"):
        StructuredOutputs(**wanted)


def test_one_schema_holds_for_no_answer_of_several_threads() -> None:
    params = replace(DRAWN, structured_outputs=StructuredOutputs(regex="a"))
    with pytest.raises(RequestError, match="several threads"):
        model().engine.submit(Request(prompt=prompt("llama"), params=params))


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
    with pytest.raises(RequestError, match="cannot be followed"):
        model().engine.grammars.matcher(wanted).consume(b)  # type: ignore[attr-defined]
    matcher.consume(c)
    assert matcher.is_complete
