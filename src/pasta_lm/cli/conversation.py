"""A conversation with a model: its turns, the next answer, and what an interrupt leaves of it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import cast

from pasta_lm.cli.terminal import say
from pasta_lm.cli.thread_view import ShowEvents
from pasta_lm.engines.reading_order import ReadingOrder
from pasta_lm.engines.request import Answer, Finished, Request, SamplingParams, StreamEvent
from pasta_lm.errors import RequestError, UsageError
from pasta_lm.strategies.model import Pasta


@dataclass(slots=True)
class Turn:
    """A question, and its answer as plain text; empty while there is none."""

    question: str
    answer: str = ""


@dataclass(slots=True)
class Dialogue:
    """The turns so far, and how the next question is answered."""

    model: Pasta
    params: SamplingParams
    strategy: str = "pasta"
    system: str | None = None
    max_prompt: int | None = None  # tokens; longer conversations lose their oldest turns
    turns: list[Turn] = field(default_factory=list)

    def ask(self, question: str, show: ShowEvents) -> Answer | None:
        """Answer a question as the next turn and return the answer; None if Ctrl-C stopped it.

        Raises:
            PastaError: it cannot be answered; the conversation goes on without it.
        """
        self.turns = [turn for turn in self.turns if turn.answer]  # no question stays unanswered
        self.turns.append(Turn(question))
        return self._answer(show)

    def regenerate(self, show: ShowEvents) -> Answer | None:
        """Answer the last question again, with the next seed.

        Raises:
            PastaError: there is no question yet, or it cannot be answered.
        """
        if not self.turns:
            raise UsageError("there is no question yet")
        self.turns[-1].answer = ""
        self.params = replace(self.params, seed=(self.params.seed or 0) + 1)
        return self._answer(show)

    def change_strategy(self, name: str) -> None:
        """Answer the next questions with another strategy.

        Raises:
            UsageError: there is no such strategy, or the model lacks what it needs.
        """
        self.model.request("?", self.params, strategy=name)
        self.strategy = name

    def _answer(self, show: ShowEvents) -> Answer | None:
        turn, answer = self.turns[-1], None
        request = self._request()
        order = ReadingOrder(is_held=request.expansion is not None)
        stream = cast("Generator[StreamEvent, None, None]", self.model.engine.stream(request))
        try:
            with closing(stream) as events:  # frees the cache of an answer that is stopped
                for event in events:
                    order.feed([event])
                    show([event])
                    if isinstance(event, Finished):
                        answer = event.answer
        except KeyboardInterrupt:
            turn.answer = order.text_so_far()
            return None
        assert answer is not None
        turn.answer = answer.text
        return answer

    def _request(self) -> Request:
        """Return the request of all turns, without the oldest ones if they are too many."""
        num_dropped = 0
        while True:
            request = self.model.request(self._messages(), self.params, strategy=self.strategy)
            num_tokens = len(request.prompt)
            if self.max_prompt is None or num_tokens <= self.max_prompt:
                break
            if len(self.turns) == 1:
                raise RequestError(
                    f"the question has {num_tokens} tokens, and the model's context has "
                    f"room for {self.max_prompt} beside an answer",
                    hint="ask a shorter question, or start with a smaller --max-tokens",
                )
            del self.turns[0]
            num_dropped += 1
        if num_dropped:
            turns = "turn" if num_dropped == 1 else f"{num_dropped} turns"
            say(
                f"the conversation is longer than the model's context: its oldest {turns} "
                f"dropped, {len(self.turns) - 1} kept"
            )
        return request

    def _messages(self) -> list[dict[str, str]]:
        """Return the turns for the chat template; answers are plain text, without tags."""
        messages = [] if self.system is None else [("system", self.system)]
        for turn in self.turns:
            messages.append(("user", turn.question))
            if turn is not self.turns[-1]:
                messages.append(("assistant", turn.answer))
        return [{"role": role, "content": content} for role, content in messages]
