"""Encoded examples of APAR and Skeleton-of-Thought: by hand, and compared with decoding."""

from __future__ import annotations

import random

import pytest

from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.errors import InputError, UsageError
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.language.document import Block, Document, Item, parse
from pasta_lm.language.events import Text
from pasta_lm.language.parser import Form
from pasta_lm.learn.data.annotated import Record
from pasta_lm.learn.data.encode import EncodedExample, encode_example, encode_points
from pasta_lm.strategies import apar_request
from pasta_lm.strategies import skeleton_of_thought as sot
from pasta_lm.strategies.requests import forced
from tests.architectures import loaded
from tests.fakes.recording_engine import Recording
from tests.learn.data.examples import BARE, EOS, is_seen, met_by, names, places
from tests.learn.data.test_encode import assert_plain, fed, labels_of
from tests.programs import words_of
from tests.reference import PROMPT

CONTINUE = PositionStrategy.CONTINUE
QUESTION = "A question?"
MODEL = loaded("qwen2")
ENDS = next(iter(MODEL.eos_ids))


def forked(document: Document, prompt: str = "q", vocabulary: object = BARE) -> EncodedExample:
    record = Record("r", prompt, document)
    return encode_example(record, vocabulary, EOS, CONTINUE, Form.FORKED)  # type: ignore[arg-type]


# --- APAR

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
        encode_example(record, BARE, EOS, PositionStrategy.PREDICT, Form.FORKED)


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
            Record("r", QUESTION, document), vocabulary, ENDS, CONTINUE, Form.FORKED
        )
        assert_met(example, forced(apar_request(prompt, params), document, vocabulary))
        num_forks += len(document.blocks)
    assert num_forks > 6


# --- Skeleton-of-Thought

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
