"""The built-in tokenizer: the same every time, exact, digits alone, names the same everywhere."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from pasta_lm.engines.torch.loading import tag_pieces
from pasta_lm.engines.vocabulary import Vocabulary
from pasta_lm.language.tags import PIECES
from pasta_lm.tasks import mixture
from pasta_lm.train.tokenizer import END, train_tokenizer

TASKS = list(islice(mixture("train", 5), 120))
TEXTS = [text for task in TASKS for text in (task.prompt, task.text)]
TOKENIZER = train_tokenizer(TEXTS, 700)
VOCABULARY = Vocabulary(TOKENIZER, tag_pieces(TOKENIZER))


def pieces(text: str) -> list[str]:
    return [VOCABULARY.token_text(token) for token in VOCABULARY.encode_text(text)]


def test_the_same_texts_give_the_same_tokenizer() -> None:
    assert train_tokenizer(iter(TEXTS), 700).get_vocab() == TOKENIZER.get_vocab()


def test_every_piece_is_a_token_and_the_end_of_text_is_none_of_them() -> None:
    assert len(TOKENIZER) == 700 + len(PIECES)
    assert VOCABULARY.has_pieces
    assert TOKENIZER.eos_token == END
    assert TOKENIZER.eos_token_id not in VOCABULARY.piece_ids.values()


def test_the_texts_of_tasks_survive() -> None:
    for text in TEXTS:
        VOCABULARY.check_round_trip(text)


@given(st.text())
def test_any_text_survives(text: str) -> None:
    VOCABULARY.check_round_trip(text)


@pytest.mark.parametrize("text", ["12", "a 2345 b", "7:30", "3,000"])
def test_digits_stand_alone(text: str) -> None:
    assert [piece for piece in pieces(text) if any(c.isdigit() for c in piece)] == [
        c for c in text if c.isdigit()
    ]


def test_a_name_is_spelled_the_same_wherever_it_stands() -> None:
    names = {word for text in TEXTS for word in text.split() if word.isalpha() and word.istitle()}
    assert len(names) > 20
    for name in names:
        spelled = pieces(name)
        for before in ("", "the ", "\n", ": "):
            assert pieces(f"{before}{name} is")[-len(spelled) - 1 : -1] == spelled


def test_a_conversation_ends_where_the_answer_begins() -> None:
    prompt = VOCABULARY.encode_prompt([{"role": "user", "content": "Hello"}])
    spelled = TOKENIZER.convert_ids_to_tokens(prompt)
    assert spelled[0] == "<|user|>"
    assert spelled[-1] == "<|assistant|>"


def test_a_saved_tokenizer_encodes_as_before(tmp_path: Path) -> None:
    TOKENIZER.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    again = Vocabulary(loaded, tag_pieces(loaded))
    assert again.piece_ids == VOCABULARY.piece_ids
    message = [{"role": "user", "content": TASKS[0].prompt}]
    assert again.encode_prompt(message) == VOCABULARY.encode_prompt(message)
    assert again.encode_text(TASKS[0].text) == VOCABULARY.encode_text(TASKS[0].text)
