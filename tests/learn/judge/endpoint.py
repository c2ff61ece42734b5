"""An endpoint for judges that answers from a script, without a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from math import log
from pathlib import Path
from typing import Any

from pasta_lm.engines.servers.client import HttpReply, RetryPolicy
from pasta_lm.journal import Journal
from pasta_lm.learn.chat.client import ChatClient, Endpoint
from pasta_lm.learn.judge import Comparison, LLMJudge, load_template

Script = Callable[[str], dict[str, Any] | HttpReply | int]
"""From the user's turn to a reply, to its body, or to the status of an error."""


class ScriptedTransport:
    """Answers by a script, as soon as the gate is open, and keeps what it was asked."""

    def __init__(self, script: Script, gate: asyncio.Event | None = None) -> None:
        self.script, self.gate, self.is_closed = script, gate, False
        self.bodies: list[Mapping[str, Any]] = []

    @property
    def asked(self) -> list[str]:
        return [body["messages"][-1]["content"] for body in self.bodies]

    async def send(self, method: str, path: str, body: Mapping[str, Any]) -> HttpReply:
        self.bodies.append(body)
        if self.gate is not None:
            await self.gate.wait()
        found = self.script(body["messages"][-1]["content"])
        if isinstance(found, int):
            return HttpReply(found, {}, b'{"error": {"message": "no"}}')
        is_body = isinstance(found, dict)
        return HttpReply(200, {}, json.dumps(found).encode()) if is_body else found

    async def close(self) -> None:
        self.is_closed = True


def stated(text: str, **message: Any) -> dict[str, Any]:
    turn = {"role": "assistant", "content": text, **message}
    choice = {"index": 0, "finish_reason": "stop", "message": turn}
    usage = {"prompt_tokens": 100, "completion_tokens": 7}
    return {"model": "a-judge", "choices": [choice], "usage": usage}


def one_token(*shares: tuple[str, float]) -> dict[str, Any]:
    """Return the body of a one-token reply with these candidates and probabilities."""
    top = [{"token": token, "logprob": log(share)} for token, share in shares]
    body = stated(shares[0][0])
    body["choices"][0]["logprobs"] = {"content": [{**top[0], "top_logprobs": top}]}
    return body


def judge(folder: Path, transport: ScriptedTransport | None, **settings: Any) -> LLMJudge:
    """Return a judge that keeps its replies in a folder; without a transport it asks nobody."""
    template = load_template(settings.pop("template", "stated-confidence-v1"))
    endpoint = Endpoint(base_url="http://judge.invalid/v1", model="a-judge")

    def client() -> ChatClient:
        policy = RetryPolicy(max_requests=2, first_delay_s=0.0)
        return ChatClient(endpoint, policy=policy, servers=transport and [transport])

    return LLMJudge(
        settings.pop("model", "a-judge"),
        template,
        Journal(folder / "replies.jsonl"),
        client if transport else None,
        **settings,
    )


FIRST, SECOND, TIE = 0.8, -0.8, 0.0


class RuleJudge:
    def __init__(self, rule: Callable[[Comparison], float | None]) -> None:
        self.rule = rule
        self.asked: list[Comparison] = []

    def compare(self, comparisons: Sequence[Comparison]) -> list[float | None]:
        self.asked += comparisons
        return [self.rule(one) for one in comparisons]


def always_first() -> RuleJudge:
    return RuleJudge(lambda _: FIRST)


def perfect(better: Collection[str]) -> RuleJudge:
    return RuleJudge(lambda one: FIRST if one.first in better else SECOND)


def longer() -> RuleJudge:
    def rule(one: Comparison) -> float:
        first, second = len(one.first), len(one.second)
        return TIE if first == second else FIRST if first > second else SECOND

    return RuleJudge(rule)
