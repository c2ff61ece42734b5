"""Encoded examples by hand, by the rules, and compared with decoding."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import normalizers

from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.errors import InputError, RequestError, UsageError, VocabularyError
from pasta_lm.interpreter.positions import Join, PositionStrategy
from pasta_lm.language.document import Block, Document, Item, parse
from pasta_lm.language.events import LexemeKind, Sync, Text
from pasta_lm.language.parser import Form
from pasta_lm.language.tags import ASYNC_CLOSE, ASYNC_OPEN, PIECES
from pasta_lm.learn.data.annotated import Record, read_records
from pasta_lm.learn.data.encode import NO_LABEL, EncodedExample, encode_example, encode_points
from pasta_lm.models.thinking import think_kwargs
from pasta_lm.models.vocabulary import Vocabulary
from pasta_lm.serve.tool_calls import Message
from pasta_lm.strategies import skeleton_of_thought as sot
from pasta_lm.strategies.requests import apar_request, forced
from tests.architectures import loaded
from tests.fakes.recording_engine import Recording
from tests.learn.data.examples import (
    BARE,
    EOS,
    documents,
    encoded,
    entries_of,
    is_seen,
    met_by,
    names,
    places,
    program_of,
    spelled,
)
from tests.plain_sequences import plain_sequences, seen_sequence
from tests.programs import words_of
from tests.reference import PROMPT, reference
from tests.small_tokenizers import byte_level
from tests.taught import PLAIN, TAUGHT, VOCABULARIES
from tests.thinking import WRITTEN, ids_of, tokenizer, vocabulary

PREDICT, CONTINUE, ORACLE = PositionStrategy
TWO_BLOCKS = (
    'A<promise topic="t" tokens="1"/><async>ab</async>'
    'B<promise topic="u" tokens="2"/><async>d</async><sync/>C'
)


def fed(example: EncodedExample) -> str:
    return " ".join(spelled(token) for token in example.token_ids)


def labels_of(example: EncodedExample) -> str:
    return " ".join(spelled(label) for label in example.labels)


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


def test_a_tokenizer_that_changes_text_is_refused() -> None:
    tokenizer = byte_level()
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    record = Record("one", "Say it.", parse("It is."))
    with pytest.raises(VocabularyError, match="'It is.' becomes 'it is.'"):
        encode_example(record, Vocabulary(tokenizer), 0)


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
    example = encode_example(record, BARE, EOS, PositionStrategy.CONTINUE, form=Form.FORKED)
    first, *rest = (example.labels[slot] for slot in example.decisions)
    lexeme = BARE.id_to_lexeme(first)
    assert lexeme is not None
    assert lexeme.kind is LexemeKind.PROMISE_OPEN
    assert rest == [BARE.piece_id("</async>"), EOS]


def recomputed(written: str | Document, prompt: str = "q") -> EncodedExample:
    document = parse(written) if isinstance(written, str) else written
    return encode_example(
        Record("r", prompt, document), BARE, EOS, PositionStrategy.CONTINUE, join=Join.RECOMPUTE
    )


def test_what_a_sync_feeds_again_predicts_nothing() -> None:
    example = recomputed(
        'A<promise topic="t" tokens="1"/><async>a</async>'
        'B<promise topic="u" tokens="2"/><async>d</async><sync/>C'
    )
    rows = zip(example.token_ids, example.positions, example.labels, strict=True)
    found = [f"{spelled(token)} {place} {spelled(label)}" for token, place, label in rows]
    before = ["begin 0 -", "q 1 A", "A 2 <p", "<p 3 t", "t 4 >1", ">1 5 B", "[ 6 a", "a 7 ]"]
    second = ["] 8 -", "B 6 <p", "<p 7 u", "u 8 >2", ">2 9 |", "[ 10 d", "d 11 ]", "] 12 -"]
    again = ["B 9 -", "<p 10 -", "u 11 -", ">2 12 -", "[ 13 -", "d 14 -", "] 15 -"]
    assert found == [*before, *second, *again, "| 16 C", "C 17 end"]
    assert len(example.main_owners) == 2
    assert [example.positions[slot] for slot in example.fed_again] == [9, 10, 11, 12, 13, 14, 15]


@given(documents)
def test_every_label_is_learned_behind_the_sequence_that_decoding_shows(document: Document) -> None:
    program = program_of(document, "Hello", BARE)
    sequences = plain_sequences(BARE, program.prompt, program.answer)
    sequences[0, -1] = program.prompt
    lengths = [len(program.answer.main) - 1, *(len(b) for b in program.answer.blocks)]
    expected: Counter[tuple[tuple[int, ...], int]] = Counter()
    for (thread, index), ids in sequences.items():
        if thread and index > lengths[thread]:
            continue  # </async> predicts nothing
        following = EOS
        if thread or index < lengths[thread]:
            following = sequences[thread, index + 1][-1]
        expected[ids, following] += 1
    example = recomputed(document, "Hello")
    entries = entries_of(example)
    labelled = [slot for slot, label in enumerate(example.labels) if label != NO_LABEL]
    found = Counter((seen_sequence(entries, s), example.labels[s]) for s in labelled)
    assert found == expected


@given(documents)
def test_main_decides_as_often_as_with_the_shared_join(document: Document) -> None:
    shared = encoded(document, "Hello", PositionStrategy.CONTINUE)
    assert len(recomputed(document, "Hello").decisions) == len(shared.decisions)


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


GAPLESS = PositionStrategy.CONTINUE
QUESTION = "A question?"
MODEL = loaded("qwen2")
ENDS = next(iter(MODEL.eos_ids))


def forked(document: Document, prompt: str = "q", vocabulary: object = BARE) -> EncodedExample:
    record = Record("r", prompt, document)
    return encode_example(record, vocabulary, EOS, GAPLESS, form=Form.FORKED)  # type: ignore[arg-type]


TWO_FORKS = parse('A<async topic="fork">ab</async>B<async topic="fork">d</async>C', Form.ANNOTATOR)


def test_a_fork_predicts_the_parents_next_token_and_children_are_invisible() -> None:
    example = forked(TWO_FORKS)
    # One piece forks, and the parent goes on with the next sibling.
    assert fed(example) == "begin q A <p [ a b ] B <p [ d ] C"
    assert labels_of(example) == "- A <p B a b ] - <p C d ] - end"
    assert list(example.positions) == [0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7, 8, 6]


def test_forks_need_positions_without_gaps() -> None:
    record = Record("r", "q", TWO_FORKS)
    with pytest.raises(UsageError, match="promise no length"):
        encode_example(record, BARE, EOS, PositionStrategy.PREDICT, form=Form.FORKED)


def test_an_answer_without_forks_or_points_is_ordinary_next_token_training() -> None:
    plain = Document((Text("A b"),))
    for example in (forked(plain), points(plain)):
        assert_plain(example, BARE.encode_prompt("q"), BARE.encode_text("A b"))


def random_texts(rng: random.Random, count: int) -> list[str]:
    words = words_of(MODEL.vocabulary).text
    drawn = [rng.choices(words, k=rng.randint(1, 12)) for _ in range(count)]
    return [MODEL.vocabulary.text(ids) for ids in drawn]


def random_tree(rng: random.Random) -> Document:
    items: list[Item] = []
    for text in random_texts(rng, rng.randint(2, 8)):
        if rng.random() < 0.5:
            items.append(Block("fork", None, (Text(text),)))
        items.append(Text(rng.choice(random_texts(rng, 1))))
    return Document(tuple(items))


def assert_met(example: EncodedExample, request: Request) -> None:
    """Hold an example to what an engine feeds, sees and decodes of the same answer."""
    ((seen,),) = Recording(MODEL, captures=False).run([request])
    place, token = places(example), dict(zip(names(example), example.token_ids, strict=True))
    met = met_by(seen)
    assert met == {name: (token[name], *place[name]) for name in met}
    unfed = {thread: index for thread, index in place if (thread, index) not in met}
    assert all((thread, index + 1) not in place for thread, index in unfed.items())  # only ends
    label = dict(zip(names(example), example.labels, strict=True))
    chosen = {thread.id: thread.num_prefix for thread in seen.response.interpreter.threads}
    for record in seen.response.trace.threads:
        tokens = [one.token for one in seen.response.trace.tokens_of(record.id)]
        for index in range(max(1, chosen[record.id]), len(tokens)):
            assert label[record.id, index - 1] == tokens[index]


@pytest.mark.parametrize("max_threads", [None, 1])
def test_forks_are_encoded_as_an_engine_decodes_them(max_threads: int | None) -> None:
    rng = random.Random("forks")
    params = SamplingParams(max_tokens=400, max_threads=max_threads)
    vocabulary = MODEL.vocabulary
    prompt = vocabulary.encode_prompt([{"role": "user", "content": QUESTION}])
    num_forks = 0
    for _ in range(6):
        document = random_tree(rng)
        example = encode_example(
            Record("r", QUESTION, document), vocabulary, ENDS, GAPLESS, form=Form.FORKED
        )
        assert_met(example, forced(apar_request(prompt, params), document, vocabulary))
        num_forks += len(document.blocks)
    assert num_forks > 6


POINTS = Document((Block("x", None, (Text("ab"),)), Block("y", None, (Text(" d"),))))


def points(document: Document, prompt: str = "q") -> EncodedExample:
    return encode_points(Record("r", prompt, document), BARE, EOS)


def texts(example: EncodedExample, thread: int) -> tuple[str, str]:
    named = zip(names(example), example.token_ids, example.labels, strict=True)
    own = [(token, label) for (owner, _), token, label in named if owner == thread]
    fed = BARE.text([token for token, _ in own])
    return fed, BARE.text([label for _, label in own if label not in (-100, EOS)])


def test_main_predicts_the_skeleton_and_each_point_its_part() -> None:
    example = points(POINTS)
    assert texts(example, PROMPT) == ("qSkeleton:\n", "1")
    assert texts(example, 0) == ("1. x\n2. y", ". x\n2. y")
    assert texts(example, 1) == ("\nPoint 1: x\nab", "ab")
    assert texts(example, 2) == ("\nPoint 2: y\n d", " d")
    assert list(example.labels).count(EOS) == 3
    asked = [*range(example.num_prompt)]
    skeleton, *parts = (
        [slot for slot, (owner, _) in enumerate(names(example)) if owner == thread]
        for thread in range(3)
    )
    for own in parts:
        seen = [slot for slot in range(len(example)) if is_seen(example, own[-1], slot)]
        assert seen == sorted([*asked, *skeleton, *own])
        assert [example.positions[slot] for slot in seen] == [*range(len(seen))]


@pytest.mark.parametrize(
    ("items", "reason"),
    [
        ((Text("So: "), *POINTS.items), "outside its blocks"),
        ((*POINTS.items, Block(" ", None, (Text("c"),))), "without a topic"),
    ],
)
def test_answers_with_text_outside_points_are_refused(items: tuple[Item, ...], reason: str) -> None:
    with pytest.raises(InputError, match=f"record r: .*{reason}"):
        points(Document(items))


@pytest.mark.parametrize("num_points", [0, 1, 2, 5])
def test_points_are_encoded_as_an_engine_decodes_them(num_points: int) -> None:
    rng = random.Random(f"points {num_points}")
    vocabulary, user = MODEL.vocabulary, [{"role": "user", "content": QUESTION}]
    for max_threads in (None, 1):
        blocks = [Block(f"t {k}", None, (Text(one),)) for k, one in
                  enumerate(random_texts(rng, num_points))]  # fmt: skip
        document = Document(tuple(blocks))
        params = SamplingParams(max_tokens=600, max_threads=max_threads)
        request = forced(sot.request(user, vocabulary, params), document, vocabulary)
        example = encode_points(Record("r", QUESTION, document), vocabulary, ENDS)
        if num_points:
            assert_met(example, request)
