"""APAR: its grammar, the visibility at a fork, and the tokens that it may sample."""

from __future__ import annotations

import json

import pytest

from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.request import Answer, Request, SamplingParams
from pasta_lm.errors import PastaSyntaxError, VocabularyError
from pasta_lm.interpreter.trace import Trace
from pasta_lm.language.document import Block, Document, parse
from pasta_lm.language.events import Promise, Sync, Text
from pasta_lm.language.lexer import Lexeme, LexemeKind
from pasta_lm.language.parser import FORK_TOPIC, Form, Parser
from pasta_lm.language.tags import ASYNC_CLOSE, ASYNC_OPEN, PROMISE_OPEN, SYNC
from pasta_lm.strategies.requests import apar_request, forced
from tests.architectures import loaded
from tests.fakes.recording_engine import TOLERANCE, Recorded, Recording
from tests.reference import is_visible

MODEL = loaded("qwen2")
VOCABULARY = MODEL.vocabulary
PROMPT = tuple(VOCABULARY.encode_prompt("three tips"))
FORK, CHILD, END = map(VOCABULARY.piece_id, (PROMISE_OPEN, ASYNC_OPEN, ASYNC_CLOSE))
TREE = parse(
    '1. Sleep:<async topic="fork"> go to bed at ten, every day.</async>'
    '\n2. Light:<async topic="fork"> off.</async>\nSo.',
    Form.ANNOTATOR,
)


def ids(text: str) -> list[int]:
    return VOCABULARY.encode_text(text)


def sampled(seed: int, **changes: object) -> Request:
    params = {"max_tokens": 80, "temperature": 1.0, "max_tokens_per_thread": 12, "seed": seed}
    return apar_request(PROMPT, SamplingParams(**{**params, **changes}))  # type: ignore[arg-type]


def test_one_piece_is_a_whole_promise_without_topic_or_length() -> None:
    parser = Parser(Form.FORKED)
    fork = Lexeme(LexemeKind.PROMISE_OPEN)
    assert parser.legal == {LexemeKind.TEXT, LexemeKind.PROMISE_OPEN}
    assert parser.feed(fork) == [Promise(FORK_TOPIC, None)]
    assert parser.feed(Lexeme(LexemeKind.TEXT, "so")) == [Text("so")]
    for kind in set(LexemeKind) - parser.legal:
        if kind is not LexemeKind.FAULT:
            with pytest.raises(PastaSyntaxError):
                parser.feed(Lexeme(kind, units=1))
    assert parser.close() == []


def test_a_forked_answer_is_one_piece_for_each_block_and_has_no_sync() -> None:
    encoded = VOCABULARY.encode_document(TREE, Form.FORKED)
    main = [*ids("1. Sleep:"), FORK, *ids("\n2. Light:"), FORK, *ids("\nSo.")]
    assert list(encoded.main) == main
    assert [*map(list, encoded.blocks)] == [ids(" go to bed at ten, every day."), ids(" off.")]
    with pytest.raises(VocabularyError, match="no sync"):
        VOCABULARY.encode_document(Document((*TREE.items, Sync())), Form.FORKED)


def replayed(name: str = "qwen2", **params: object) -> Recorded:
    model = loaded(name)
    bounds = SamplingParams(**{"max_tokens": 200, **params})  # type: ignore[arg-type]
    prompt = model.vocabulary.encode_prompt("three tips")
    request = forced(apar_request(prompt, bounds), TREE, model.vocabulary)
    ((seen,),) = Recording(model).run([request])
    return seen


def test_a_child_sees_its_prefix_and_the_parent_sees_no_child() -> None:
    seen = replayed()
    entries, (main, first, second) = seen.entries, seen.response.interpreter.threads

    def read(owner: int) -> list[tuple[int, int]]:
        own = [slot for slot, entry in enumerate(entries.items) if entry.owner == owner]
        visible = [s for s in range(len(entries)) if is_visible(entries, own[-1], s)]
        assert [entries[s].position for s in visible] == [*range(len(visible))]
        return [entries[slot].token for slot in visible]

    one, two = [*PROMPT, *ids("1. Sleep:"), FORK], [*ids("\n2. Light:"), FORK]
    assert read(first.owner)[: len(one) + 1] == [*one, CHILD]
    assert read(first.owner)[len(one) + 1 :] == ids(" go to bed at ten, every day.")
    assert read(second.owner) == [*one, *two, CHILD, *ids(" off."), END]
    assert read(main.owner) == [*one, *two, *ids("\nSo.")]


@pytest.mark.parametrize("name", ["qwen2", "mistral", "gemma3"])
def test_forks_meet_the_logits_of_one_masked_pass(name: str) -> None:
    for max_threads in (None, 1):
        seen = replayed(name, max_threads=max_threads)
        assert seen.worst_difference(loaded(name)) <= TOLERANCE
        assert seen.answer is not None
        assert seen.answer.document == TREE


def test_the_trace_counts_forks_as_tags_and_promises_nothing() -> None:
    seen = replayed()
    assert seen.answer is not None
    answer, trace = seen.answer, seen.answer.trace
    assert (trace.strategy, trace.positions) == ("apar", "continue")
    assert trace.forward_passes == trace.critical_path
    encoded = VOCABULARY.encode_document(TREE, Form.FORKED)
    one, main = len(ids("1. Sleep:")), len(encoded.main)
    # <async> is fed with the fork; the child's last word is fed, its end is not if it comes last.
    assert trace.critical_path == max(main, one + 1 + len(ids(" go to bed at ten, every day.")))
    assert trace.num_content_tokens == main - 2 + sum(map(len, encoded.blocks)), "two forks"
    assert [thread.promised_tokens for thread in trace.threads] == [None] * 3
    assert trace.syncs == []
    assert Trace.from_json(trace.to_json()) == trace
    program = json.loads(json.dumps(answer.to_dict()))["program"]
    assert parse(program, Form.ANNOTATOR) == TREE
    assert answer.text == "1. Sleep: go to bed at ten, every day.\n2. Light: off.\nSo."


def answers(*requests: Request) -> list[Answer]:
    engine = TorchEngine(MODEL, pool_tokens=8192)
    found = [answer for samples in engine.generate(requests) for answer in samples]
    assert engine.pool.num_free_pages == engine.pool.num_pages
    return found


def test_only_forks_can_be_sampled_and_none_follows_another() -> None:
    num_forks = 0
    pieces = set(VOCABULARY.piece_ids.values())
    for answer in answers(*(sampled(seed) for seed in range(30))):
        trace = answer.trace
        assert trace.num_illegal == 0
        main = [token.token for token in trace.tokens_of(0)]
        forks = [index for index, token in enumerate(main) if token == FORK]
        assert pieces.intersection(t for t in main if t is not None) <= {FORK}
        assert all(b - a > 1 for a, b in zip(forks, forks[1:], strict=False))
        assert len(forks) == len(trace.threads) - 1
        num_forks += len(forks)
        for thread in trace.threads[1:]:
            lane = [token.token for token in trace.tokens_of(thread.id)]
            assert lane[0] == CHILD
            assert not pieces.intersection(t for t in lane[1:-1] if t is not None)
            assert lane[1:2] != [END]
        document = answer.document
        assert all(isinstance(item, Text | Block) for item in document.items)
        assert all(block.topic == FORK_TOPIC for block in document.blocks)
    assert num_forks > 20


def test_without_the_mask_what_the_table_lacks_has_no_effect_and_is_counted() -> None:
    found = answers(*(sampled(seed, mask=False) for seed in range(20)))
    assert sum(answer.trace.num_illegal for answer in found) > 5
    sync = VOCABULARY.piece_id(SYNC)
    said = [token for answer in found for token in answer.trace.tokens_of(0) if token.token == sync]
    assert said
    assert all(answer.trace.syncs == [] for answer in found)
