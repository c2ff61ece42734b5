from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pasta_lm.models.vocabulary import Vocabulary
from tests.small_tokenizers import FAMILIES
from tests.taught import PLAIN, TAUGHT, VOCABULARIES

each_family = pytest.mark.parametrize("name", FAMILIES)


@pytest.mark.parametrize("name", TAUGHT)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_stream_gives_the_text_of_its_tokens(name: str, data: st.DataObject) -> None:
    vocabulary = TAUGHT[name]
    any_id = st.integers(0, vocabulary.num_tokens - 1)
    partial = st.sampled_from([*split_characters(vocabulary)])
    ids = data.draw(st.lists((any_id | partial).filter(vocabulary.token_text), max_size=12))
    stream = vocabulary.text_stream()
    deltas = [stream.feed(token_id) for token_id in ids]
    assert "".join([*deltas, stream.close()]) == vocabulary.text(ids)


def split_characters(vocabulary: Vocabulary) -> set[int]:
    ids = vocabulary.encode_text("\u00e9\u4e2d\U0001f469 \u00ff\ud7ff\U0010ffff")
    return {token_id for token_id in ids if "\ufffd" in vocabulary.token_text(token_id)}


@each_family
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_text_agrees_with_the_decoder_of_transformers(name: str, data: st.DataObject) -> None:
    vocabulary, tokenizer = PLAIN[name], FAMILIES[name]()
    begin = vocabulary.encode_text("a")
    ids = data.draw(st.lists(st.integers(0, vocabulary.num_tokens - 1), max_size=12))
    whole = tokenizer.decode(
        begin + ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    if "\ufffd" in whole and "byte_level" not in name:
        return  # their byte fallback spoils the whole run of bytes; ours only what is not whole
    assert "a" + vocabulary.text(ids) == whole.lstrip(" ")


@each_family
def test_a_character_comes_out_whole(name: str) -> None:
    vocabulary = TAUGHT[name]
    text = "caf\u00e9 \u4e2d\u6587 \U0001f469\u200d\U0001f4bb!"
    stream = vocabulary.text_stream()
    deltas = [stream.feed(token_id) for token_id in vocabulary.encode_text(text)]
    assert "".join(deltas) == text
    assert stream.close() == ""
    assert not any("\ufffd" in delta for delta in deltas)


@each_family
def test_what_never_becomes_a_character_comes_out_at_the_close(name: str) -> None:
    vocabulary = TAUGHT[name]
    first, *_ = vocabulary.encode_text("\U0001f469")
    stream = vocabulary.text_stream()
    assert stream.feed(first) == ""
    assert stream.close() == "\ufffd"
    assert stream.close() == ""
    assert [stream.feed(i) for i in vocabulary.encode_text("a")] == ["a"]


@each_family
def test_tags_and_special_tokens_read_as_nothing(name: str) -> None:
    for vocabulary in (TAUGHT[name], VOCABULARIES[f"{name}, not special"]):
        assert {vocabulary.token_text(i) for i in vocabulary.piece_ids.values()} == {""}
        assert vocabulary.text(list(vocabulary.prompt_prefix)) == ""
        assert vocabulary.token_text(vocabulary.num_tokens + 7) == ""
