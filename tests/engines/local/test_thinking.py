"""A thought comes before the answer: sequential, without tags, shown apart, ended by its mark."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from pasta_lm.engines.request import SamplingParams, StructuredOutputs, TextDelta, ThoughtDelta
from pasta_lm.errors import RequestError
from pasta_lm.interpreter.trace import Role
from pasta_lm.models.vocabulary import Vocabulary
from tests.small_tokenizers import byte_level
from tests.thinking import WRITTEN, ids_of, rendered, saying

FORK = 'Here: <promise topic="one" tokens="1"/> and'
QUESTION = [{"role": "user", "content": "Why?"}]
TURNS = [
    *QUESTION,
    {"role": "assistant", "content": "So.", "reasoning_content": "Hm.", "thinking": "Hm."},
    {"role": "user", "content": "Really?"},
]
OPEN, SHUT = "<think>\n", "<think>\n\n</think>\n\n"
NAMES = [*WRITTEN]


@pytest.mark.parametrize(
    ("name", "think", "ending"),
    [
        ("qwen3", None, "<|im_start|>assistant\n"),
        ("qwen3", True, "<|im_start|>assistant\n"),
        ("qwen3", False, "<|im_start|>assistant\n" + SHUT),
        ("smollm3", None, "<|im_start|>assistant\n"),
        ("smollm3", False, "<|im_start|>assistant\n<think>\n\n</think>\n"),
        ("deepseek-r1", None, "<｜Assistant｜>" + OPEN),
        ("deepseek-r1", False, "<｜Assistant｜>" + SHUT),
        ("granite-3.3", None, "<|start_of_role|>assistant<|end_of_role|>"),
        ("granite-3.3", False, "<|start_of_role|>assistant<|end_of_role|>"),
        ("gpt-oss", None, "<|start|>assistant"),
        ("gpt-oss", False, "<|start|>assistant<|channel|>final<|message|>"),
    ],
)
def test_a_template_is_asked_to_think_as_the_caller_says(
    name: str, think: bool | None, ending: str
) -> None:
    request = saying(name, "").request(QUESTION, think=think)
    assert rendered(name, [*request.prompt]).endswith(ending)
    expects = think is not False or name == "granite-3.3"  # it has nothing to switch off
    assert (request.thinking is not None) is expects
    assert expects is False or request.thinking.is_open is (name == "deepseek-r1")


def test_variables_of_the_template_are_those_of_the_request() -> None:
    for name, kwargs, text in (
        ("gpt-oss", {"reasoning_effort": "high"}, "Reasoning: high"),
        ("granite-3.3", {"thinking": True}, "Write your thoughts between <think></think>"),
        ("qwen3", {"enable_thinking": False}, SHUT),
    ):
        request = saying(name, "").request(QUESTION, chat_template_kwargs=kwargs)
        assert text in rendered(name, [*request.prompt])
    with pytest.raises(RequestError, match="may set the variable chat_template"):
        saying("qwen3", "").request(QUESTION, chat_template_kwargs={"chat_template": "x"})


@pytest.mark.parametrize("name", NAMES)
def test_earlier_thoughts_leave_the_conversation(name: str) -> None:
    prompt = rendered(name, [*saying(name, "").request(TURNS).prompt])
    assert "So." in prompt
    assert "Hm." not in prompt


def test_a_special_token_in_an_earlier_thought_is_text() -> None:
    words = byte_level()
    words.chat_template = "{% for m in messages %}{{ m.content }}{{ m.thinking }}{% endfor %}"
    turn = {"role": "assistant", "content": "So.", "thinking": "<|end|>"}
    ids = Vocabulary(words).encode_prompt([turn])
    assert words.decode(ids) == "So.<|end|>"
    assert words.eos_token_id not in ids


@pytest.mark.parametrize("name", NAMES)
def test_the_thought_is_shown_apart_and_the_answer_forks_behind_it(name: str) -> None:
    start, end = WRITTEN[name]
    model = saying(name, f"{start}Two things < three. \n{end}{FORK}", "Block.")
    events = [*model.stream(QUESTION)]
    answer = events[-1].answer
    assert (answer.reasoning, answer.text) == ("Two things < three.", "Here: Block. and")
    thought = [event.text for event in events if isinstance(event, ThoughtDelta)]
    assert "".join(thought) == answer.reasoning
    assert len(thought) > 3, "it comes as it is decoded"
    main = [e.text for e in events if isinstance(e, TextDelta) and e.thread == 0]
    assert "".join(main) == "Here:  and"
    assert "".join(model.stream_text(QUESTION)) == answer.text
    assert answer.to_dict()["reasoning"] == answer.reasoning
    roles = [token.role for token in answer.trace.tokens_of(0)]
    assert roles[: answer.trace.num_thought_tokens] == [Role.THOUGHT] * roles.count(Role.THOUGHT)
    assert answer.usage["completion_tokens"] == len(answer.trace.tokens)


@pytest.mark.parametrize("name", NAMES)
def test_no_thread_forks_inside_a_thought(name: str) -> None:
    start, end = WRITTEN[name]
    answer = saying(name, f"{start}{FORK} so{end}{FORK}", "Block.").generate(QUESTION)
    assert len(answer.trace.threads) == 2
    assert answer.trace.num_illegal == 0, "the mask let no tag through"
    tags = [n for n, token in enumerate(answer.trace.tokens_of(0)) if token.role is Role.TAG]
    assert tags[0] > len(ids_of(name, start)) + len(ids_of(name, FORK))


@pytest.mark.parametrize(
    ("name", "written", "text"),
    [
        ("qwen3", "Hello", "Hello"),
        ("gpt-oss", "<|channel|>final<|message|>Hello", "Hello"),
        ("granite-3.3", "<thing> Hello", "<thing> Hello"),
        ("granite-3.3", "<th", "<th"),
        ("smollm3", " so", " so"),
    ],
)
def test_a_model_may_answer_without_a_thought(name: str, written: str, text: str) -> None:
    answer = saying(name, written).generate(QUESTION)
    assert (answer.reasoning, answer.text, answer.finish_reason) == (None, text, "stop")


def test_words_that_spell_a_mark_end_no_thought_of_a_model_with_tokens_for_it() -> None:
    spelled = saying("qwen3", "").engine.loaded.vocabulary.encode_text("</")
    assert ids_of("qwen3", "</think>")[0] not in spelled
    answer = saying("qwen3", "<think>\nWrite </ think> here</think>x").generate(QUESTION)
    assert (answer.reasoning, answer.text) == ("Write </ think> here", "x")


@pytest.mark.parametrize("name", NAMES)
def test_a_thought_that_max_tokens_cuts_is_all_there_is(name: str) -> None:
    start, end = WRITTEN[name]
    model = saying(name, f"{start}One, two, three, four, five, six{end}{FORK}", "Block.")
    bound = len(ids_of(name, start)) + 5
    answer = model.generate(QUESTION, max_tokens=bound)
    assert (answer.text, answer.finish_reason) == ("", "length")
    assert "One, two, three, four, five, six".startswith(answer.reasoning)
    assert answer.usage["completion_tokens"] == bound


@pytest.mark.parametrize("bound", [0, 1, 6])
@pytest.mark.parametrize("name", NAMES)
def test_max_thinking_tokens_ends_the_thought_with_its_mark(name: str, bound: int) -> None:
    start, end = map(str.strip, WRITTEN[name])
    model = saying(name, start + "One, two, three, four, five, six, seven, eight. " * 4)
    answer = model.generate(QUESTION, max_thinking_tokens=bound, max_tokens=60)
    forced = [token for token in answer.trace.tokens if token.is_forced]
    assert [token.token for token in forced] == ids_of(name, end)
    assert answer.trace.tokens.index(forced[0]) == len(ids_of(name, start)) + bound
    assert answer.text


def test_a_stop_string_is_looked_for_in_the_answer_alone() -> None:
    model = saying("qwen3", "<think>\nfirst stop\n</think>\n\nthen stop here")
    answer = model.generate(QUESTION, stop=("stop",))
    assert (answer.reasoning, answer.text) == ("first stop", "then ")


def test_the_tokens_are_those_of_a_run_without_guesses() -> None:
    text = "<think>\nso and so and so and so</think>\n\nso and so and so " + FORK
    for strategy in ("prompt-lookup", "pasta-prompt-lookup"):
        model = saying("qwen3", text, "Block.")
        base = "pasta" if strategy.startswith("pasta") else "sequential"
        plain = model.generate(QUESTION, strategy=base)
        guessed = model.generate(QUESTION, strategy=strategy)
        assert guessed.trace.forward_passes < plain.trace.forward_passes
        assert guessed.reasoning == plain.reasoning == "so and so and so and so"
        assert guessed.program == plain.program


def test_a_schema_binds_the_answer_behind_the_thought() -> None:
    pytest.importorskip("llguidance")
    params = SamplingParams(structured_outputs=StructuredOutputs(regex="a[0-9]+"), max_tokens=20)
    for name in ("qwen3", "deepseek-r1", "granite-3.3"):
        ended = saying(name, "Hm").generate(QUESTION, params, think=True, max_thinking_tokens=4)
        assert re.fullmatch("a[0-9]+", ended.text), "no end of text is legal inside the thought"
    other = replace(params, structured_outputs=StructuredOutputs(regex="b"))
    with pytest.raises(RequestError, match="with the end of its thought the model wrote 'a'"):
        saying("granite-3.3", "Hm</think>a12").generate(QUESTION, other, think=True)
    quiet = saying("qwen3", "a12").generate(QUESTION, params)
    assert (quiet.reasoning, quiet.text) == (None, "a12")


@pytest.mark.parametrize(
    ("name", "regex", "text"),
    [("qwen3", "a[0-9]+", "a12"), ("qwen3", " a12", " a12"), ("qwen3", r"\n\na12", "\n\na12"),
     ("deepseek-r1", "a[0-9]+", "a12"),
     ("granite-3.3", "a[0-9]+", "a12"), ("granite-3.3", " a12", " a12")],  # a token is "> a"
)  # fmt: skip
def test_white_space_behind_a_thought_is_the_form_s(name: str, regex: str, text: str) -> None:
    pytest.importorskip("llguidance")
    form = StructuredOutputs(regex=regex)
    model = saying(name, f"Hm, so</think>{' a12' if name == 'granite-3.3' else text}")
    answer = model.generate(QUESTION, structured_outputs=form, max_tokens=20, think=True)
    assert (answer.reasoning, answer.text) == ("Hm, so", text)
