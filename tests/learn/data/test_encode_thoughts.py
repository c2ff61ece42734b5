"""Thoughts and earlier turns of a record, encoded as they are when a model is asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from pasta_lm.errors import RequestError
from pasta_lm.language.document import parse
from pasta_lm.learn.data.annotated import Record
from pasta_lm.learn.data.encode import NO_LABEL, encode_example
from pasta_lm.models.thinking import think_kwargs
from tests.learn.data.examples import BARE, EOS
from tests.thinking import WRITTEN, ids_of, tokenizer, vocabulary

TAGGED = 'A<promise topic="t" tokens="1"/><async> ab</async> B'
LINES = {"granite-3.3": ("<think>\n", "\n</think>\n\n"), "smollm3": ("<think>\n", "\n</think>\n\n")}


@pytest.mark.parametrize("thoughts", ["none", "context", "loss"])
@pytest.mark.parametrize("written", ["A b", TAGGED])
@pytest.mark.parametrize("name", WRITTEN)
def test_a_thought_is_left_out_read_or_learnt(
    name: str, written: str, thoughts: Literal["none", "context", "loss"]
) -> None:
    own, eos = vocabulary(name), tokenizer(name).eos_token_id
    record = Record("r", "Why?", parse(written), reasoning="Hm <so>")
    example = encode_example(record, own, eos, thoughts=thoughts)
    bare = encode_example(replace(record, reasoning=None), own, eos)
    thinks = thoughts != "none"
    prompt = own.encode_prompt(record.messages, chat_template_kwargs=think_kwargs(thinks))
    start, end = LINES.get(name, WRITTEN[name])
    thought = ids_of(name, start) + ids_of(name, "Hm <so>") + ids_of(name, end)
    thought = thought if thinks else []
    assert [*example.token_ids[: example.num_prompt]] == [*prompt, *thought]
    assert [*example.labels[example.num_prompt - 1 :]] == [*bare.labels[bare.num_prompt - 1 :]]
    labels = [label for label in example.labels[: example.num_prompt - 1] if label != NO_LABEL]
    assert labels == (thought if thoughts == "loss" else [])


def test_a_model_that_cannot_think_learns_no_thought() -> None:
    record = Record("r", "Why?", parse("A b"), reasoning="Hm")
    with pytest.raises(RequestError, match="no place for a thought"):
        encode_example(record, BARE, EOS, thoughts="loss")


def test_earlier_answers_are_read_as_they_are_served() -> None:
    own, eos = vocabulary("smollm3"), tokenizer("smollm3").eos_token_id
    turns = ({"role": "user", "content": "One?"}, {"role": "assistant", "response": TAGGED})
    example = encode_example(Record("r", "Two?", parse("A b"), turns=turns), own, eos)
    answer = {"role": "assistant", "content": parse(TAGGED).plain_text}
    served = own.encode_prompt([turns[0], answer, {"role": "user", "content": "Two?"}])
    assert [*example.token_ids[: example.num_prompt]] == served
    assert not {*own.piece_ids.values()} & {*served}
    assert {*example.labels[: example.num_prompt - 1]} == {NO_LABEL}
