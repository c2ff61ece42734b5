"""Skeleton-of-Thought: both stages computed by hand, compared with one masked pass, and limits."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.request import Expansion, Request, SamplingParams, Start
from pasta_lm.interpreter.trace import Role, Trace
from pasta_lm.language.document import Document, parse
from pasta_lm.language.events import Text
from pasta_lm.strategies import skeleton_of_thought as sot
from pasta_lm.strategies.requests import forced, sequential_request
from pasta_lm.strategies.skeleton_of_thought import FINETUNED, PROMPTED
from tests.architectures import build, load, loaded
from tests.fakes.recording_engine import TOLERANCE, Recorded, Recording
from tests.reference import is_visible
from tests.taught import PLAIN, TAUGHT

MODEL = loaded("qwen2")
VOCABULARY = MODEL.vocabulary
PROMPT = tuple(VOCABULARY.encode_prompt("three tips"))
POINTS = parse(
    '<async topic="sleep">Go to bed at ten.</async><async topic="light"> Turn the lamps off, all '
    'of them.</async><async topic="noise"> No radio.</async>',
    "annotator",
)


def ids(text: str) -> tuple[int, ...]:
    return tuple(VOCABULARY.encode_text(text))


def engine(**settings: object) -> TorchEngine:
    return TorchEngine(MODEL, **{"pool_tokens": 4096, **settings})  # type: ignore[arg-type]


def free(*given: str, num_main: int = 4, **params: object) -> Request:
    """Let the model write what it likes behind a skeleton that says nothing."""
    starts = [Start(prefix=ids(one), topic=f"t{index}") for index, one in enumerate(given)]
    bounds = {"max_tokens": 200, "max_tokens_per_thread": 14, **params}
    return Request(
        prompt=PROMPT,
        params=SamplingParams(**bounds),  # type: ignore[arg-type]
        forks=False,
        expansion=Expansion(starts=lambda _: starts, max_main_tokens=num_main),
        strategy=sot.NAME,
    )


def tokens_of(trace: Trace, thread: int) -> list[int | None]:
    return [one.token for one in trace.tokens_of(thread) if one.role is not Role.TAG]


@pytest.mark.parametrize(
    ("skeleton", "expected"),
    [
        ("1. Sleep\n2. Light", [(1, "Sleep"), (2, "Light")]),
        ("Skeleton:\n 1) Sleep well. \n\n2)Light", [(1, "Sleep well."), (2, "Light")]),
        ("1. a\n1. b\n3. c", [(1, "a"), (3, "c")]),
        ("1.\n2. b", [(2, "b")]),
        ("Sleep more. It costs 2. So", []),
        ("", []),
    ],
)
def test_the_points_of_a_skeleton_are_its_numbered_lines(
    skeleton: str, expected: list[tuple[int, str]]
) -> None:
    assert sot.read_points(skeleton) == expected


def test_reading_a_written_skeleton_gives_its_points() -> None:
    blocks = sot.blocks_of(POINTS)
    assert sot.skeleton_of(blocks) == "1. sleep\n2. light\n3. noise"
    found = sot.read_points(sot.skeleton_of(blocks))
    assert [text for _, text in found] == [block.topic for block in blocks]
    assert sot.skeleton_of(blocks[:1]) == ""
    with pytest.raises(ValueError, match="outside its blocks"):
        sot.blocks_of(Document((Text("So: "), *blocks)))


def replayed(document: Document = POINTS, **params: object) -> Recorded:
    bounds = SamplingParams(**{"max_tokens": 300, **params})  # type: ignore[arg-type]
    request = forced(sot.request("three tips", VOCABULARY, bounds), document, VOCABULARY)
    ((seen,),) = Recording(MODEL).run([request])
    return seen


def test_the_answer_is_its_points_and_the_skeleton_is_counted() -> None:
    seen = replayed()
    answer, trace = seen.answer, seen.response.trace
    assert answer is not None
    assert answer.text == "Go to bed at ten. Turn the lamps off, all of them. No radio."
    assert answer.document == POINTS
    assert answer.finish_reason == "stop"
    skeleton = ids("1. sleep\n2. light\n3. noise")
    points = [ids(block.plain_text) for block in POINTS.blocks]
    suffixes = [ids(f"\nPoint {k}: {b.topic}\n") for k, b in enumerate(POINTS.blocks, start=1)]
    # The skeleton, one pass for all that asks for points, then the longest point.
    assert trace.critical_path == len(skeleton) + 1 + max(map(len, points))
    assert trace.forward_passes == trace.critical_path
    assert trace.num_content_tokens == sum(map(len, points))
    assert trace.usage()["completion_tokens"] == sum(map(len, [skeleton, *points, *suffixes]))
    assert [thread.topic for thread in trace.threads] == [None, "sleep", "light", "noise"]
    assert {thread.start_step for thread in trace.threads[1:]} == {len(skeleton)}
    assert {token.role for token in trace.tokens_of(0)} == {Role.TOPIC}
    assert Trace.from_json(trace.to_json()) == trace
    assert json.dumps(answer.to_dict()).count("async topic") == 3


def test_a_point_sees_prompt_skeleton_and_its_own_suffix_alone() -> None:
    seen = replayed()
    entries, threads = seen.entries, seen.response.interpreter.threads
    asked = [*PROMPT, *ids(FINETUNED.lead), *ids("1. sleep\n2. light\n3. noise")]
    for number, (thread, block) in enumerate(zip(threads[1:], POINTS.blocks, strict=True), 1):
        own = [slot for slot, entry in enumerate(entries.items) if entry.owner == thread.owner]
        read = [s for s in range(len(entries)) if is_visible(entries, own[-1], s)]
        expected = [*ids(f"\nPoint {number}: {block.topic}\n"), *ids(block.plain_text)]
        assert [entries[slot].token for slot in read] == [*asked, *expected]
        assert [entries[slot].position for slot in read] == [*range(len(read))]


@pytest.mark.parametrize("name", ["qwen2", "mistral", "gemma3"])
def test_points_meet_the_logits_of_one_masked_pass(name: str) -> None:
    model = loaded(name)
    alone = forced(
        sot.request("tips", model.vocabulary, SamplingParams()), POINTS, model.vocabulary
    )
    narrow = replace(alone, params=replace(alone.params, max_threads=2))
    seen = Recording(model).run([alone, narrow], preempt_every=7)
    assert max(one.worst_difference(model) for (one,) in seen) <= TOLERANCE
    assert seen[0][0].num_preemptions > 2
    documents = [one.answer.document for (one,) in seen if one.answer]
    assert documents == [POINTS, POINTS]
    assert len(seen[0][0].slots) > sum(len(block.plain_text.split()) for block in POINTS.blocks)


def test_each_point_equals_the_sequential_answer_after_its_whole_prefix() -> None:
    asked = free("one\n", "point two\n", "and three\n")
    (answer,) = engine().generate([asked])[0]
    skeleton = tokens_of(answer.trace, 0)
    assert len(skeleton) == 4
    for number, given in enumerate(("one\n", "point two\n", "and three\n"), start=1):
        found = tokens_of(answer.trace, number)
        prefix = [*PROMPT, *(token for token in skeleton if token is not None), *ids(given)]
        params = SamplingParams(max_tokens=len(found))
        ((alone,),) = engine().generate([sequential_request(prefix, params)])
        assert tokens_of(alone.trace, 0) == found


@pytest.mark.parametrize("num_main", [0, 5])
def test_without_two_points_the_answer_is_the_sequential_one(
    num_main: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sot, "MAX_SKELETON_TOKENS", num_main)
    params = SamplingParams(max_tokens=40)
    for prompt in ("three tips", [{"role": "user", "content": "go on"}]):
        sent = VOCABULARY.encode_prompt(prompt)
        (alone,) = engine().generate([sequential_request(sent, params)])[0]
        asked = sot.request(prompt, VOCABULARY, replace(params, max_tokens=41 + num_main))
        ((seen,),) = Recording(MODEL).run([asked])
        assert seen.worst_difference(MODEL) <= TOLERANCE
        assert seen.answer is not None
        assert seen.answer.document == alone.document
        trace = seen.answer.trace
        assert tokens_of(trace, 1) == tokens_of(alone.trace, 0)
        # What the skeleton cost, and the prompt's last token once more.
        assert trace.critical_path == alone.trace.critical_path + num_main + 1
        assert trace.forward_passes == trace.critical_path


@pytest.mark.parametrize("name", sorted(TAUGHT))
def test_a_prompted_point_is_a_turn_of_the_same_conversation(name: str) -> None:
    vocabulary = TAUGHT[name]
    user = [{"role": "user", "content": "Tips {for} sleep?"}]
    stages = sot.Stages(user, vocabulary, PROMPTED)
    text = vocabulary.text(stages.prompt)
    assert "to this question.\nTips {for} sleep?\nSkeleton:" in text
    assert text.endswith("model:1.")
    first, second = stages.starts(" Sleep\n2. Light")
    assert (first.text, second.text) == ("1. Sleep:", "\n2. Light:")
    asked = vocabulary.text(second.prefix)
    assert "user: Now write out one point" in asked
    assert "point 2." in asked
    assert asked.endswith("model:2. Light:")
    alone = vocabulary.encode_prompt(user)
    assert [*stages.prompt[: stages.fallback.num_seen], *stages.fallback.prefix] == alone
    assert stages.starts(" Sleep") == [stages.fallback]


@pytest.mark.parametrize(
    "skeleton", [" Sleep\n2. Light", " Sleep.\n2. Light.", " Sleep:\n2. Light:"]
)
def test_a_model_without_a_chat_template_reads_paragraphs(skeleton: str) -> None:
    vocabulary = PLAIN["byte_level"]
    stages = sot.Stages("Tips?", vocabulary, PROMPTED)
    (start, _) = stages.starts(skeleton)
    given = vocabulary.text(start.prefix)
    assert given.startswith("\n\nNow write out one point")
    assert given.endswith("next point.\n\n1. Sleep:")  # behind a full stop many models end


def test_the_opening_of_a_point_is_part_of_the_answer() -> None:
    starts = [Start(prefix=ids("x 1. Sleep"), topic="Sleep", text="1. Sleep")]
    expansion = Expansion(starts=lambda _: starts, max_main_tokens=1)
    asked = replace(free("x"), expansion=expansion)
    (answer,) = engine().generate([asked])[0]
    assert answer.text.startswith("1. Sleep")
    assert answer.trace.num_content_tokens == len(tokens_of(answer.trace, 1))


def assert_empty(one: TorchEngine) -> None:
    assert not one.has_work
    assert one.pool.num_free_pages == one.pool.num_pages


@pytest.mark.parametrize("max_tokens", [1, 3, 4, 5, 6, 9, 20])
def test_max_tokens_bounds_a_response_with_points(max_tokens: int) -> None:
    one = engine(pool_tokens=len(PROMPT) + 32)
    (answer,) = one.generate([free("one\n", "point two\n", max_tokens=max_tokens)])[0]
    assert answer.finish_reason == "length"
    assert answer.trace.num_tokens <= max_tokens
    assert_empty(one)


def test_max_blocks_bounds_the_number_of_points() -> None:
    (answer,) = engine().generate([free("a\n", "b\n", "c\n", max_blocks=2)])[0]
    assert [block.topic for block in answer.document.blocks] == ["t0", "t1"]
    assert answer.finish_reason == "length"  # a point is missing


@pytest.mark.parametrize("room", [0, 1, 2, 6])
def test_a_point_that_does_not_fit_the_context_is_left_out(room: int) -> None:
    last = len(PROMPT) + 4 + len(ids("a\n")) + 1 + room
    model = load("qwen2", build("qwen2", max_position_embeddings=last + 1))
    one = TorchEngine(model, pool_tokens=512)
    (answer,) = one.generate([free("a\n", "b" * 80, num_main=4)])[0]
    assert answer.finish_reason == "length"
    assert [block.topic for block in answer.document.blocks] == ["t0"] * (room > 0)
    assert max(token.position or 0 for token in answer.trace.tokens) <= last
    assert (answer.text == "") == (room == 0)
    assert_empty(one)
