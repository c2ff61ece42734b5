from __future__ import annotations

import pytest

from pasta_lm.language.document import Document, parse
from pasta_lm.language.parser import Form
from pasta_lm.learn.annotate.filters import Reason, Rejection, examine, speedup
from pasta_lm.learn.annotate.teacher import TeacherConversation, read_prompt, unwrap
from pasta_lm.learn.chat.client import ChatReply
from tests.fakes.scripted_teacher import asked_answer, marked

ANSWER = f"One <sync/> two{' three' * 9}.\n\nSix &lt;sync/&gt; seven{' eight' * 9}.\n"

SHOWN = {  # blocks, syncs
    "1_sections": (3, 0),
    "2_list_items": (4, 0),
    "3_hidden_in_a_paragraph": (3, 0),
    "4_two_rounds": (4, 1),
    "5_computed_conclusion": (2, 1),
    "6_dependent_list": (0, 0),
    "7_short_answer": (0, 0),
}


@pytest.mark.parametrize("one", read_prompt().demonstrations, ids=lambda one: one.name)
def test_each_demonstration_matches_its_name_and_passes_the_filters(one) -> None:
    document = parse(one.annotated, Form.ANNOTATOR)
    kept = examine(one.annotated, document.plain_text)
    assert isinstance(kept, Document)
    assert (len(kept.blocks), kept.num_syncs) == SHOWN[one.name]
    assert speedup(kept) > 1.2 or not kept.blocks
    has_lines = any("\n" in block.plain_text for block in kept.blocks)
    assert not (one.name.startswith("3") and ("\n" in document.plain_text or has_lines))


def test_seven_demonstrations_precede_the_answer() -> None:
    prompt = read_prompt()
    assert [one.name for one in prompt.demonstrations] == list(SHOWN)
    roles = [one["role"] for one in prompt.messages("Why?", ANSWER)]
    assert roles == ["system", *["user", "assistant"] * 7, "user"]


def test_an_answer_that_spells_tags_is_unchanged() -> None:
    talk = TeacherConversation("Why?", ANSWER)
    asked = talk.messages[-1]["content"]
    assert "One &lt;sync/> two" in asked
    assert asked_answer(talk.messages) == ANSWER
    talk.feed(ChatReply(f"<answer>\n{marked(ANSWER)}\n</answer>"))
    assert isinstance(talk.outcome, Document)
    assert talk.outcome.plain_text == ANSWER


@pytest.mark.parametrize(
    ("reply", "copy"),
    [
        ("<answer>\nx\n</answer>", "x"),
        ("Here:\n<answer>\n\nx\n\n</answer>\nDone.", "\nx\n"),
        ("<answer>x</answer>", "x"),
        ("<answer>\nx </answer> y\n</answer>", "x </answer> y"),
        ("x\n", "x\n"),
        ("</answer>x<answer>", "</answer>x<answer>"),
    ],
)
def test_the_copy_is_the_text_between_the_marks(reply: str, copy: str) -> None:
    assert unwrap(reply) == copy


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (ChatReply("<answer>\nSomething else.\n</answer>"), Reason.TEXT_CHANGED),
        (ChatReply("<answer>\n<async>x</async>\n</answer>"), Reason.TOPIC_BOUNDS),
        (ChatReply("", refusal="No."), "refused"),
        (ChatReply("  "), "refused"),
        (ChatReply("<answer>\nOne", finish_reason="length"), "cut_off"),
    ],
)
def test_a_rejected_copy_is_returned_with_the_diagnostic_twice(
    reply: ChatReply, reason: str
) -> None:
    talk = TeacherConversation("Why?", ANSWER)
    first = len(talk.messages)
    for number in (1, 2):
        talk.feed(reply)
        assert talk.outcome is None
        assert len(talk.messages) == first + 2 * number
        assert f"({reason})" in talk.messages[-1]["content"]
        assert "{" not in talk.messages[-1]["content"]
        assert asked_answer(talk.messages) == ANSWER
    talk.feed(reply)
    assert isinstance(talk.outcome, Rejection)
    assert talk.outcome.reason == reason
