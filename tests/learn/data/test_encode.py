"""Encoded examples by hand, by the rules, and compared with decoding."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import normalizers

from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.errors import InputError, VocabularyError
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.language.document import Block, Document, Item, parse
from pasta_lm.language.events import LexemeKind, Sync, Text
from pasta_lm.language.parser import Form
from pasta_lm.language.tags import ASYNC_CLOSE, ASYNC_OPEN, PIECES
from pasta_lm.learn.data.annotated import Record
from pasta_lm.learn.data.encode import NO_LABEL, EncodedExample, encode_example
from pasta_lm.models.vocabulary import Vocabulary
from tests.architectures import loaded
from tests.decoding import decode_document
from tests.fakes.recording_engine import Recording
from tests.learn.data.examples import (
    BARE,
    EOS,
    documents,
    encoded,
    met_by,
    names,
    places,
    program_of,
    spelled,
)
from tests.programs import random_program
from tests.reference import PROMPT, reference
from tests.small_tokenizers import byte_level
from tests.taught import PLAIN, TAUGHT, VOCABULARIES

PREDICT, CONTINUE, ORACLE = PositionStrategy
TWO_BLOCKS = (
    'A<promise topic="t" tokens="1"/><async>ab</async>'
    'B<promise topic="u" tokens="2"/><async>d</async><sync/>C'
)


def fed(example: EncodedExample) -> str:
    return " ".join(spelled(token) for token in example.token_ids)


def labels_of(example: EncodedExample) -> str:
    return " ".join(spelled(label) for label in example.labels)


# --- by hand


def test_a_space_before_a_block_is_its_first_words() -> None:
    lone = encoded('A: <promise topic="t" tokens="1"/><async>the</async> <sync/>x')
    moved = encoded('A:<promise topic="t" tokens="1"/><async> the</async><sync/> x')
    assert lone == moved
    assert fed(lone) == "begin q A : <p t >1 [  the ] |   x"


def test_each_token_predicts_what_its_thread_decodes_next() -> None:
    example = encoded(TWO_BLOCKS)
    # Main goes on behind a promise, the block is its own thread's, and nothing follows it there.
    assert fed(example) == "begin q A <p t >1 [ a b ] B <p u >2 [ d ] | C"
    assert labels_of(example) == "- A <p t >1 B a b ] - <p u >2 | d ] - C end"
    at_the_end = encoded('<promise topic="t" tokens="1"/><async></async>')
    assert fed(at_the_end) == "begin q <p t >1 [ ]"
    assert labels_of(at_the_end) == "- <p t >1 end ] -"


# --- answers without tags


def assert_plain(example: EncodedExample, prompt: list[int], answer: list[int]) -> None:
    """Hold an example to ordinary next-token training."""
    whole = [*prompt, *answer, EOS]
    assert list(example.token_ids) == whole[:-1]
    num_unlearned = len(prompt) - 1
    assert list(example.labels) == [NO_LABEL] * num_unlearned + whole[len(prompt) :]
    assert list(example.positions) == list(range(len(whole) - 1))
    assert example.rows is None
    assert example.num_prompt == len(prompt)


@given(st.text(max_size=12), st.text(max_size=40))
def test_an_answer_without_tags_is_ordinary_next_token_training(prompt: str, text: str) -> None:
    example = encoded(Document((Text(text),)), prompt)
    assert_plain(example, BARE.encode_prompt(prompt), BARE.encode_text(text))


def test_a_sync_without_blocks_is_still_predicted() -> None:
    example = encoded(Document((Text("A"), Sync(), Text("B"))))
    assert fed(example) == "begin q A | B"
    assert labels_of(example) == "- A | B end"
    assert example.rows is not None


# --- tags are learned where the answer has them, never where text spells them


@pytest.mark.parametrize("name", VOCABULARIES)
def test_tags_that_text_spells_are_encoded_as_text(name: str) -> None:
    vocabulary = VOCABULARIES[name]
    spelled_out = f"Explain {''.join(PIECES[:6])} <async topic='x'> and <sync/>."
    document = Document((Block("a <sync/>", 1, (Text(spelled_out),)), Text(spelled_out)))
    for answer, expected in ((parse("A."), []), (document, ["<p", ">1", "[", "]"])):
        example = encoded(answer, spelled_out, vocabulary=vocabulary)
        tags = [token for token in example.token_ids if vocabulary.id_to_lexeme(token)]
        assert [spelled(token, vocabulary) for token in tags] == expected
        learned = {label for label in example.labels if label in vocabulary.piece_ids.values()}
        assert learned <= {*tags}


def test_without_tag_pieces_only_plain_answers_can_be_encoded() -> None:
    vocabulary = PLAIN["byte_level"]
    assert encoded("A.", vocabulary=vocabulary).rows is None
    with pytest.raises(VocabularyError):
        encoded(TWO_BLOCKS, vocabulary=vocabulary)


@pytest.mark.parametrize("inner", [Block("inner", 1, (Text("b"),)), Sync()])
def test_tags_inside_a_block_are_refused_and_the_record_is_named(inner: Item) -> None:
    nested = Document((Block("outer", 2, (Text("a"), inner)), Block("next", 1)))
    with pytest.raises(InputError, match="record r: .*inside"):
        encoded(nested)


def test_an_empty_prompt_is_refused_and_the_record_is_named() -> None:
    class Silent(Vocabulary):
        def encode_prompt(self, prompt: object, **_: object) -> list[int]:
            return []

    for answer in ("A.", TWO_BLOCKS):
        with pytest.raises(InputError, match="record r: .*no tokens"):
            encoded(answer, vocabulary=Silent(BARE.tokenizer, BARE.piece_ids))


# --- by the rules


@given(documents)
def test_every_token_but_the_prompts_and_async_is_predicted_once_by_the_one_before_it(
    document: Document,
) -> None:
    example = encoded(document)
    name_of = names(example)
    token = dict(zip(name_of, example.token_ids, strict=True))
    label = dict(zip(name_of, example.labels, strict=True))
    last_of_prompt = (PROMPT, example.num_prompt - 1)
    for thread, index in name_of:
        if thread == PROMPT and (thread, index) != last_of_prompt:
            expected = NO_LABEL
        elif thread <= 0:
            following = (0, 0) if thread == PROMPT else (0, index + 1)
            expected = token.get(following, EOS)
        else:
            expected = token.get((thread, index + 1), NO_LABEL)
        assert label[thread, index] == expected
    num_async = list(example.token_ids).count(BARE.piece_id(ASYNC_OPEN))
    num_learned = sum(value != NO_LABEL for value in example.labels)
    assert num_learned == len(example) - example.num_prompt - num_async + 1
    assert num_async == len(document.blocks)


@given(documents, st.sampled_from(sorted(TAUGHT)), st.sampled_from(PositionStrategy))
def test_tokens_positions_and_visibility_of_each_thread_follow_the_written_form(
    document: Document, family: str, strategy: PositionStrategy
) -> None:
    vocabulary = TAUGHT[family]
    example = encoded(document, "Hello", strategy, vocabulary)
    program = program_of(document, "Hello", vocabulary)
    assert places(example) == reference(program.shape(vocabulary), strategy)
    token = dict(zip(names(example), example.token_ids, strict=True))
    opening, closing = vocabulary.piece_id(ASYNC_OPEN), vocabulary.piece_id(ASYNC_CLOSE)
    threads = [program.answer.main, *((opening, *b, closing) for b in program.answer.blocks)]
    assert token == {
        (thread, index): value
        for thread, values in [(PROMPT, program.prompt), *enumerate(threads)]
        for index, value in enumerate(values)
    }


# --- as decoding has it


@pytest.mark.parametrize("max_threads", [None, 1])
@pytest.mark.parametrize("strategy", PositionStrategy)
def test_training_visibility_equals_that_of_a_decoding_engine(
    strategy: PositionStrategy, max_threads: int | None
) -> None:
    model, rng = loaded("qwen2"), random.Random(f"{strategy}")
    vocabulary = model.vocabulary
    random_ones = [random_program(rng, vocabulary).answer for _ in range(8)]
    answers = [decode_document(vocabulary, answer) for answer in random_ones]
    programs = [program_of(document, "A question?", vocabulary) for document in answers]
    params = SamplingParams(max_tokens=800, max_threads=max_threads)
    requests = [
        Request(prompt=p.prompt, forced=p.answer, positions=strategy, params=params)
        for p in programs
    ]
    witnessed = Recording(model, captures=False).run(requests)
    num_blocks = 0
    for document, (seen,) in zip(answers, witnessed, strict=True):
        record = Record("r", "A question?", document)
        example = encode_example(record, vocabulary, EOS, strategy)
        place, token = places(example), dict(zip(names(example), example.token_ids, strict=True))
        met = met_by(seen)
        assert met == {name: (token[name], *place[name]) for name in met}
        assert seen.answer is not None
        assert seen.answer.document == document
        num_blocks += len(document.blocks)
    assert num_blocks > 8


def test_a_tokenizer_that_changes_text_is_refused() -> None:
    tokenizer = byte_level()
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    record = Record("one", "Say it.", parse("It is."))
    with pytest.raises(VocabularyError, match="'It is.' becomes 'it is.'"):
        encode_example(record, Vocabulary(tokenizer), 0)


# --- main's decisions


def decided(example: EncodedExample) -> str:
    """Spell what main predicts, decisions in braces; runs of them share a pair."""
    named = names(example)
    found = [
        f"{{{spelled(label)}}}" if slot in example.decisions else spelled(label)
        for slot, label in enumerate(example.labels)
        if label != NO_LABEL and named[slot][0] <= 0
    ]
    return "".join(found).replace("}{", "")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("", "{end}"),
        ("one two", "{o}ne two{end}"),
        # A sentence, a line and what stands behind a list marker could have been a promise.
        ("It is. So, be it.", "{I}t is.{ }So, be it.{end}"),
        ("a:\n- one\n1. two", "{a}:{\n- one}\n{1}.{ t}wo{end}"),
        ("pi 3.14 x", "{p}i 3.14 x{end}"),
        # Later boundaries say nothing new.
        ("a\n" * 10, "{a}\n" * 8 + "a\na\n{end}"),
        # Beside promises and syncs text is no decision, not even at a boundary.
        ("A\n<p>\n<p>|so it is", "A\n{<pt>1}\n{<pt>1|}so it is{end}"),
        ("A\n<p>\nso it is", "A\n{<pt>1}\nso it is{end}"),
        ("A<p>|so<p>", "A{<pt>1|}so{<pt>1end}"),
    ],
)
def test_mains_decisions_are_marked(answer: str, expected: str) -> None:
    written = answer.replace("|", "<sync/>")
    written = written.replace("<p>", '<promise topic="t" tokens="1"/><async>one. two</async>')
    assert decided(encoded(written)) == expected


@given(documents)
def test_tags_topics_and_ends_are_decisions_and_the_text_of_blocks_is_none(
    document: Document,
) -> None:
    example = encoded(document)
    named, decisions = names(example), set(example.decisions)
    assert sorted(decisions) == list(example.decisions)
    for slot, label in enumerate(example.labels):
        thread, _ = named[slot]
        lexeme = None if label == NO_LABEL else BARE.id_to_lexeme(label)
        if thread > 0:
            assert (slot in decisions) == (lexeme is not None)
        elif lexeme is not None or label == EOS:
            assert slot in decisions
    topics = encoded(Document(tuple(i for i in document.items if isinstance(i, Block))))
    of_main = [slot for slot, (thread, _) in enumerate(names(topics)) if thread == 0]
    assert {*of_main} <= {*topics.decisions}


def test_a_fork_and_the_end_of_its_block_are_decisions_and_text_is_none() -> None:
    record = Record("one", "q", parse('A<promise topic="t" tokens="1"/><async>b</async>so'))
    example = encode_example(record, BARE, EOS, PositionStrategy.CONTINUE, Form.FORKED)
    first, *rest = (example.labels[slot] for slot in example.decisions)
    lexeme = BARE.id_to_lexeme(first)
    assert lexeme is not None
    assert lexeme.kind is LexemeKind.PROMISE_OPEN
    assert rest == [BARE.piece_id("</async>"), EOS]
