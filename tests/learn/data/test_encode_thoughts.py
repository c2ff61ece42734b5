"""Thoughts and earlier turns of a record, encoded as they are when a model is asked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from pasta_lm.errors import RequestError
from pasta_lm.language.document import parse
from pasta_lm.learn.data.annotated import Record, read_records
from pasta_lm.learn.data.encode import NO_LABEL, encode_example
from pasta_lm.models.thinking import think_kwargs
from pasta_lm.serve.tool_calls import Message
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


ASKED = [
    {"role": "system", "content": "Be brief. "},
    {
        "role": "user",
        "content": [{"type": "text", "text": "One?\n"}, {"type": "text", "text": "?"}],
    },
    {"role": "assistant", "content": parse(TAGGED).plain_text, "reasoning_content": "Hm."},
    {"role": "user", "content": "Two <|im_end|>?"},
]


@pytest.mark.parametrize("num_turns", [1, 2, 4])
@pytest.mark.parametrize("name", WRITTEN)
def test_the_prompt_of_a_record_has_the_tokens_that_the_server_gives_to_the_engine(
    name: str, num_turns: int, tmp_path: Path
) -> None:
    messages = ASKED[:num_turns] if num_turns > 1 else ASKED[3:]
    written = [
        turn | ({"response": TAGGED} if "reasoning_content" in turn else {}) for turn in messages
    ]
    (tmp_path / "r.jsonl").write_text(json.dumps({"messages": written, "response": "A b"}))
    own, eos = vocabulary(name), tokenizer(name).eos_token_id
    example = encode_example(read_records(tmp_path / "r.jsonl")[0], own, eos)
    turns = [Message.model_validate(turn).turn for turn in messages]
    served = own.encode_prompt(turns, chat_template_kwargs=think_kwargs(False))
    assert [*example.token_ids[: example.num_prompt]] == served
    assert not {*own.piece_ids.values()} & {*served}
    assert {*example.labels[: example.num_prompt - 1]} == {NO_LABEL}
