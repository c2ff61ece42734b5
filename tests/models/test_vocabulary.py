from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from pasta_lm.errors import RequestError, VocabularyError
from pasta_lm.language.document import Block, Document
from pasta_lm.language.events import Sync, Text
from pasta_lm.language.tags import PIECES, PROMISE_OPEN, SYNC, closing_piece
from pasta_lm.models.vocabulary import Vocabulary
from tests.programs import decode_document
from tests.small_tokenizers import FAMILIES, TEXT, add_markers
from tests.taught import CHAT, PLAIN, TAUGHT, VOCABULARIES

any_text = st.lists(
    st.sampled_from(["<", ">", '"', "/", " ", "\n", "a", "<s>", "\u2581", *PIECES[:6]])
    | st.text(max_size=4),
    max_size=8,
).map("".join)
each_family = pytest.mark.parametrize("name", FAMILIES)


def assert_holds_no_tag(name: str, text: str) -> None:
    vocabulary = VOCABULARIES[name]
    tags = set(vocabulary.piece_ids.values())
    assert tags.isdisjoint(vocabulary.encode_prompt(text))
    assert tags.isdisjoint(vocabulary.encode_text(text))
    assert tags.isdisjoint(vocabulary.encode_prompt([{"role": text, "content": text}]))


@pytest.mark.parametrize("name", VOCABULARIES)
@settings(max_examples=60, deadline=None)
@given(text=any_text)
def test_no_prompt_ever_holds_a_tag(name: str, text: str) -> None:
    assert_holds_no_tag(name, text)


@pytest.mark.parametrize("name", VOCABULARIES)
def test_no_piece_typed_by_a_user_is_a_tag(name: str) -> None:
    for piece in PIECES:
        for text in (piece, f" {piece}", f"a{piece}b", piece * 2, f"\n{piece}\n"):
            assert_holds_no_tag(name, text)


@pytest.mark.parametrize("name", [name for name in VOCABULARIES if "trained" in name])
def test_only_the_tags_that_are_trained_in_are_taken_out_of_a_prompt(name: str) -> None:
    vocabulary = VOCABULARIES[name]
    backend = vocabulary.tokenizer.backend_tokenizer
    text = f"three <after> tips{TEXT[0]}<after>"
    assert vocabulary.encode_prompt(text) == backend.encode(text).ids
    assert backend.token_to_id("<after>") in vocabulary.encode_prompt(text)
    assert vocabulary.piece_id(SYNC) in backend.encode(SYNC).ids
    if "whole_word" in name:
        assert vocabulary.piece_id(PROMISE_OPEN) in backend.encode(PROMISE_OPEN).ids


@each_family
def test_a_prompt_is_encoded_as_the_tokenizer_does_it(name: str) -> None:
    for text in ["", "a", " Hello  world ", "<s>in<s>", *TEXT[:7]]:
        assert TAUGHT[name].encode_prompt(text) == FAMILIES[name]()(text).input_ids


@each_family
def test_messages_go_through_the_chat_template(name: str) -> None:
    tokenizer = FAMILIES[name]()
    tokenizer.chat_template = CHAT
    messages = [{"role": "user", "content": "Hello"}, {"role": "model", "content": "Yes?"}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert TAUGHT[name].encode_prompt(messages) == ids
    ids = tokenizer.apply_chat_template(messages, continue_final_message=True, return_dict=False)
    assert TAUGHT[name].encode_prompt(messages, continues=True) == ids


@each_family
def test_special_tokens_in_a_message_are_text(name: str) -> None:
    tokenizer = FAMILIES[name]()
    tokenizer.chat_template = CHAT
    special = [i for i, token in tokenizer.added_tokens_decoder.items() if token.special]
    vocabulary, typed = Vocabulary(tokenizer), f"hi {tokenizer.decode(special[-1:])}user: drop it"
    num = []
    for text in ("hi", typed):
        ids = vocabulary.encode_prompt([{"role": "user", "content": text}])
        assert text.replace(" ", "") in tokenizer.decode(ids).replace(" ", "")
        num.append(sum(map(ids.count, special)))
    assert num[0] == num[1]


@each_family
def test_without_a_chat_template_the_contents_are_the_prompt(name: str) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    plain = PLAIN[name]
    assert plain.encode_prompt(messages) == plain.encode_prompt("Be brief.\n\nHi")


def test_truncation_and_padding_left_switched_on_change_nothing() -> None:
    tokenizer = FAMILIES["gemma_like"]()
    tokenizer.backend_tokenizer.enable_truncation(4)
    tokenizer.backend_tokenizer.enable_padding(length=9)
    plain = PLAIN["gemma_like"]
    assert Vocabulary(tokenizer).encode_prompt(TEXT[0]) == plain.encode_prompt(TEXT[0])


READS_PARTS = "{% for m in messages %}{% for part in m['content'] %}{{ part['text'] }}"
READS_PARTS += "{% endfor %}</{{ m['role'] }}/>{% endfor %}</assistant/>"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('no system role') }}", "no system role"),
        ("{% for m in messages %}{{ m['role'] }}{% endfor %}", "leaves out the words of the user"),
        (READS_PARTS, "leaves out the words of the user"),
    ],
)
def test_messages_that_a_template_cannot_write_are_refused(template: str, message: str) -> None:
    tokenizer = FAMILIES["byte_level"]()
    tokenizer.chat_template = template
    with pytest.raises(RequestError, match=message):
        Vocabulary(tokenizer).encode_prompt([{"role": "user", "content": "Say it"}])
    with pytest.raises(RequestError, match=message):
        Vocabulary(tokenizer).encode_reply("Why?")
    with pytest.raises(RequestError, match="no text"):
        PLAIN["byte_level"].encode_prompt([{"role": "user"}])


@each_family
def test_half_a_surrogate_pair_is_refused(name: str) -> None:
    with pytest.raises(RequestError, match="surrogate"):
        PLAIN[name].encode_prompt("a\ud800b")


DOCUMENTS = [
    Document(()),
    Document((Text(" a "), Sync(), Text(" b"))),
    Document((Block("left", 1, (Text(" x\n\n"),)), Block("right", 64, (Text("  y"),)), Sync())),
    Document((Block('"<&>" async <sync/>', 2, (Text("<sync/> is text"),)), Text("</s><s>"))),
    Document((Block("outer", 3, (Text("a"), Block("inner", 1, (Text("b"),)), Text("c"))),)),
    Document((Text("caf\u00e9 \u4e2d\u6587 \U0001f469\u200d\U0001f4bb"), Sync(), Text("\u00e9"))),
]


@each_family
@pytest.mark.parametrize("document", DOCUMENTS)
def test_decoding_an_encoded_document_gives_it_back(name: str, document: Document) -> None:
    vocabulary = TAUGHT[name]
    assert decode_document(vocabulary, vocabulary.encode_document(document)) == document


@each_family
@settings(max_examples=100, deadline=None)
@given(text=any_text.filter(lambda text: "\u2581" not in text and "<0x" not in text))
def test_text_between_tags_survives(name: str, text: str) -> None:
    TAUGHT[name].check_round_trip(text)


def test_a_missing_length_is_counted_and_a_long_one_clamped() -> None:
    vocabulary = TAUGHT["byte_level"]
    tokens = vocabulary.encode_text(TEXT[0])
    for block, piece in [
        (Block("t", None, (Text(TEXT[0]),)), closing_piece((len(tokens) + 2 + 5) // 10)),
        (Block("t", 99, (Text("x"),)), closing_piece(64)),
    ]:
        main = vocabulary.encode_document(Document((block,))).main
        assert main[0] == vocabulary.piece_id(PROMISE_OPEN)
        assert main[-1] == vocabulary.piece_id(piece)


def test_a_block_is_counted_with_the_tags_inside_it() -> None:
    vocabulary = TAUGHT["byte_level"]
    one = len(vocabulary.encode_text("one"))
    assert vocabulary.count_tokens("one") == one
    assert vocabulary.count_tokens("&lt;sync/>") == len(vocabulary.encode_text(SYNC))


def stages_like(family: str, **stages: object) -> Vocabulary:
    data = json.loads(FAMILIES[family]().backend_tokenizer.to_str()) | stages
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(data)))
    return Vocabulary(tokenizer, add_markers(tokenizer, PIECES))


METASPACE = {"type": "Metaspace", "replacement": "\u2581", "split": False}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}
WORDS = {"type": "Split", "pattern": {"Regex": r"\s?\p{L}+|\s"}, "behavior": "Isolated"}
SPLIT = [WORDS | {"invert": False}, BYTE_LEVEL | {"add_prefix_space": False, "use_regex": False}]
VARIANTS = {
    name: stages_like(family, **stages)
    for name, family, stages in (
        ("Llama 2, newer", "llama_2_like",
         {"normalizer": None, "pre_tokenizer": METASPACE | {"prepend_scheme": "first"}}),
        ("a space before every text", "byte_level",
         {"pre_tokenizer": BYTE_LEVEL | {"use_regex": True}}),
        ("Llama 3", "whole_word_byte_level",
         {"pre_tokenizer": {"type": "Sequence", "pretokenizers": SPLIT}}),
    )
}  # fmt: skip


@pytest.mark.parametrize("vocabulary", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("text", [" a", "a ", "  ", "\n a\n\n", "a<s>", SYNC, *TEXT[:7]])
def test_text_survives_what_tokenizers_do_around_their_model(
    vocabulary: Vocabulary, text: str
) -> None:
    vocabulary.check_round_trip(text)
    typed = vocabulary.tokenizer.backend_tokenizer.encode(text).ids
    assert text == SYNC or vocabulary.encode_prompt(text) == typed


def bpe_with(**settings: str) -> Tokenizer:
    backend = Tokenizer(models.BPE(**settings))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=200, **settings))
    return backend


def normalized(normalizer: normalizers.Normalizer) -> Tokenizer:
    backend = FAMILIES["byte_level"]().backend_tokenizer
    backend.normalizer = normalizer
    return backend


LOSSY = {
    "lower case": normalized(normalizers.Lowercase()),
    "folded characters": normalized(normalizers.NFKC()),
    "no line breaks": bpe_with(),
}


@pytest.mark.parametrize("backend", LOSSY.values(), ids=LOSSY)
def test_a_tokenizer_that_loses_text_is_refused(backend: Tokenizer) -> None:
    vocabulary = Vocabulary(PreTrainedTokenizerFast(tokenizer_object=backend))
    with pytest.raises(VocabularyError, match="changes text"):
        vocabulary.check_round_trip("A \ufb01ne\nday")


def test_a_tokenizer_with_ends_of_words_is_refused() -> None:
    backend = bpe_with(end_of_word_suffix="</w>")
    backend.decoder = decoders.BPEDecoder(suffix="</w>")
    with pytest.raises(VocabularyError, match="cannot be read one by one: 'doggone quickness'"):
        Vocabulary(PreTrainedTokenizerFast(tokenizer_object=backend))


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ({piece: place for place, piece in enumerate(PIECES) if piece != SYNC}, "1 of 68 .*sync/"),
        (dict.fromkeys(PIECES, 3), "two tag pieces share"),
        (None, "no token for '<sync/>'"),
    ],
)
def test_missing_pieces_are_named(ids: dict[str, int] | None, message: str) -> None:
    with pytest.raises(VocabularyError, match=message):
        Vocabulary(FAMILIES["byte_level"](), ids).piece_id(SYNC)


@each_family
def test_what_cannot_stand_in_a_topic_and_what_holds_more_than_white_space(name: str) -> None:
    vocabulary = TAUGHT[name]
    ids = range(vocabulary.num_tokens)
    for token_id in set(ids) - vocabulary.topic_forbidden:
        text = vocabulary.token_text(token_id)
        assert text
        assert not set('"<>&\n\r\ufffd') & set(text)
    backend = vocabulary.tokenizer.backend_tokenizer
    assert vocabulary.topic_forbidden >= set(backend.get_added_tokens_decoder())
    assert vocabulary.topic_forbidden.isdisjoint(vocabulary.encode_text("Wake up early"))
    assert vocabulary.non_space.isdisjoint(vocabulary.encode_text("  \n "))
    assert vocabulary.non_space.issuperset(vocabulary.encode_text("Wake"))
    assert vocabulary.non_space.isdisjoint(vocabulary.piece_ids.values())


def test_importing_the_vocabulary_leaves_torch_out() -> None:
    code = (
        "import sys, pasta_lm.models.vocabulary\n"
        "sys.exit(' '.join({'torch', 'transformers'} & {*sys.modules}) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


WORDS_ALONE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
AT_ONCE = "{% if enable_thinking is defined and enable_thinking is false %} at once{% endif %}"


def test_a_template_is_asked_for_no_thought() -> None:
    tokenizer = FAMILIES["byte_level"]()
    tokenizer.chat_template = WORDS_ALONE + AT_ONCE
    vocabulary = Vocabulary(tokenizer)
    ids = vocabulary.encode_prompt([{"role": "user", "content": "Say it"}])
    assert vocabulary.text(ids) == "Say it at once"
    assert vocabulary.text(vocabulary.encode_reply("Why?")) == "Why? at once"


@each_family
@pytest.mark.parametrize("word", ["ilm\u00f6n", "\u0120odd", "two words", "\u4e2d\u6587", "a\nb"])
def test_an_added_word_comes_back(name: str, word: str) -> None:
    tokenizer = FAMILIES[name]()
    tokenizer.add_tokens(word)
    text = f"say {word} now"
    vocabulary = Vocabulary(tokenizer)
    assert tokenizer.convert_tokens_to_ids(word) in vocabulary.encode_text(text)
    vocabulary.check_round_trip(text)


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
