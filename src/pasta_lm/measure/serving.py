"""Load on a server: prompts at a pace, and the figures of vLLM's benchmark under its own names.

Times are those of the client: a server that decodes several threads at once shows as more tokens
between two pieces of text, so ``tpot`` falls and ``itl`` need not.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from random import Random
from statistics import fmean, median, pstdev, quantiles
from typing import Any, NamedTuple

from pasta_lm.errors import InputError, MissingFileError, RemoteError, UsageError
from pasta_lm.learn.chat.timed import TimedClient, TimedReply

CHAT = "/v1/chat/completions"
BACKEND = "openai-chat"
RANDOM, CUSTOM = "random", "custom"
DATASETS = (RANDOM, CUSTOM)
WORDS = (
    *("the", "of", "and", "to", "in", "is", "that", "it", "was", "for", "on", "are", "as", "with"),
    *("they", "at", "be", "this", "from", "have", "or", "by", "one", "had", "not", "but", "what"),
    *("all", "were", "when", "we", "there", "can", "an", "your", "which", "their", "said", "if"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """What is sent, and how fast; the names are vLLM's."""

    dataset_name: str = RANDOM
    dataset_path: Path | None = None
    num_prompts: int = 1000
    request_rate: float = inf  # requests a second; inf: all at once
    burstiness: float = 1.0  # shape of the gamma distribution of the gaps; 1: a Poisson process
    max_concurrency: int | None = None
    random_input_len: int = 1024  # words of a random prompt; the server counts its tokens
    random_output_len: int = 128  # tokens of each answer; a random prompt gets all of them
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse settings without a meaning, as a ``UsageError``."""
        if self.dataset_name not in DATASETS:
            names = ", ".join(DATASETS)
            raise UsageError(f"unknown dataset {self.dataset_name!r}", hint=f"one of {names}")
        if (self.dataset_name == CUSTOM) != (self.dataset_path is not None):
            raise UsageError("--dataset-path goes with --dataset-name custom, and only with it")
        for flag, value in (("request-rate", self.request_rate), ("burstiness", self.burstiness)):
            if not value > 0:
                raise UsageError(f"--{flag} is {value}, but must be above 0")

    def bodies(self) -> list[dict[str, Any]]:
        """Return the request for each prompt, without the model.

        Raises:
            InputError: a file of prompts cannot be read.
        """
        more: dict[str, Any] = {"max_tokens": self.random_output_len, "temperature": 0.0}
        if self.dataset_name == RANDOM:
            more["ignore_eos"] = True
        return [
            {"messages": [{"role": "user", "content": prompt}], **more}
            for prompt in self._prompts()
        ]

    def gap_s(self, random: Random) -> float:
        """Draw the time between two requests, in seconds; its mean is 1 / ``request_rate``."""
        if self.request_rate == inf:
            return 0.0
        return random.gammavariate(self.burstiness, 1 / (self.request_rate * self.burstiness))

    def _prompts(self) -> Sequence[str]:
        if self.dataset_path is not None:
            prompts = read_prompts(self.dataset_path)
            return [prompts[number % len(prompts)] for number in range(self.num_prompts)]
        random = Random(self.seed)
        return [
            " ".join(random.choices(WORDS, k=self.random_input_len))
            for _ in range(self.num_prompts)
        ]


def read_prompts(path: Path) -> list[str]:
    """Return the prompts of a JSONL file, one object with a ``prompt`` a line.

    Raises:
        InputError: a line has none, or the file has no line.
    """
    if not path.is_file():
        raise MissingFileError(path)
    prompts = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
        try:
            prompt = json.loads(line)["prompt"]
        except (ValueError, LookupError, TypeError):
            prompt = None
        if not isinstance(prompt, str):
            raise InputError(
                f"{path}, line {number} has no prompt", hint='one object a line: {"prompt": "..."}'
            )
        prompts.append(prompt)
    if not prompts:
        raise InputError(f"{path} has no prompts", hint='one object a line: {"prompt": "..."}')
    return prompts


class Load(NamedTuple):
    """What came back, in the order of the prompts, and how long all of it took."""

    model: str
    replies: Sequence[TimedReply]
    duration_s: float


async def send(settings: LoadSettings, client: TimedClient, model: str | None = None) -> Load:
    """Send all requests at their pace and return what came back.

    Raises:
        RemoteError: the server does not answer at all.
        InputError: a file of prompts cannot be read.
    """
    name = await client.model() if model is None else model
    asked = {"model": name, "stream": True, "stream_options": {"include_usage": True}}
    room = asyncio.Semaphore(settings.max_concurrency or settings.num_prompts)

    async def send_one(body: dict[str, Any]) -> TimedReply:
        async with room:
            return await client.post(CHAT, {**asked, **body})

    random = Random(settings.seed)
    tasks: list[asyncio.Future[TimedReply]] = []
    began = time.perf_counter()
    due_s = 0.0
    for body in settings.bodies():
        tasks.append(asyncio.ensure_future(send_one(body)))
        due_s += settings.gap_s(random)
        await asyncio.sleep(max(0.0, due_s - (time.perf_counter() - began)))
    replies = await asyncio.gather(*tasks)
    duration_s = time.perf_counter() - began
    if all(reply.error for reply in replies):
        raise RemoteError(f"no request was answered; the first: {replies[0].error}")
    return Load(name, replies, duration_s)


def figures(settings: LoadSettings, load: Load) -> dict[str, Any]:
    """Return vLLM's figures under its names, and the parallelism of the answers."""
    done = [reply for reply in load.replies if not reply.error and reply.text_s]
    inputs = [reply.usage.get("prompt_tokens", 0) for reply in done]
    outputs = [reply.usage.get("completion_tokens", len(reply.text_s)) for reply in done]
    gaps = [[b - a for a, b in zip(r.text_s, r.text_s[1:], strict=False)] for r in done]
    pairs = zip(done, outputs, strict=True)
    times_s = {
        "ttft": [reply.text_s[0] for reply in done],
        "tpot": [(r.text_s[-1] - r.text_s[0]) / (n - 1) for r, n in pairs if n > 1],
        "itl": [gap for row in gaps for gap in row],
        "e2el": [reply.text_s[-1] for reply in done],
    }
    choices = [one for reply in done for one in reply.pasta.get("choices", ())]
    return {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": BACKEND,
        "backend": BACKEND,
        "label": BACKEND,
        "model_id": load.model,
        "tokenizer_id": load.model,  # the server counts the tokens
        "dataset_name": settings.dataset_name,
        "num_prompts": settings.num_prompts,
        "request_rate": "inf" if settings.request_rate == inf else settings.request_rate,
        "burstiness": settings.burstiness,
        "max_concurrency": settings.max_concurrency,
        "duration": load.duration_s,
        "completed": len(done),
        "failed": len(load.replies) - len(done),
        "total_input_tokens": sum(inputs),
        "total_output_tokens": sum(outputs),
        "request_throughput": len(done) / load.duration_s,
        "request_goodput": None,  # no limits are given that an answer could keep
        "output_throughput": sum(outputs) / load.duration_s,
        "total_token_throughput": (sum(inputs) + sum(outputs)) / load.duration_s,
        **_peaks(done, outputs),
        **{key: value for name, values in times_s.items() for key, value in _ms(name, values)},
        "parallelism": _mean([one["parallelism"] for one in choices]),
        "critical_path_tokens": _mean([one["critical_path_tokens"] for one in choices]),
        "input_lens": inputs,
        "output_lens": outputs,
        "ttfts": times_s["ttft"],
        "itls": gaps,
        "latencies": times_s["e2el"],
        "start_times": [reply.sent_s for reply in done],
        "generated_texts": [reply.text for reply in done],
        "parallelisms": [one["parallelism"] for one in choices],
        "errors": [reply.error or "" for reply in load.replies],
    }


def _peaks(done: Sequence[TimedReply], outputs: Sequence[int]) -> dict[str, float]:
    """Return the most tokens and the most running requests of one second, counted from the first.

    The tokens of an answer are spread evenly over its pieces of text.
    """
    first_s = min((reply.sent_s for reply in done), default=0.0)
    tokens: defaultdict[int, float] = defaultdict(float)
    running: Counter[int] = Counter()
    for reply, num_tokens in zip(done, outputs, strict=True):
        sent_s = reply.sent_s - first_s
        for text_s in reply.text_s:
            tokens[int(sent_s + text_s)] += num_tokens / len(reply.text_s)
        running.update(range(int(sent_s), int(sent_s + reply.text_s[-1]) + 1))
    return {
        "max_output_tokens_per_s": float(max(tokens.values(), default=0)),
        "max_concurrent_requests": max(running.values(), default=0),
    }


def _ms(name: str, values_s: Sequence[float]) -> list[tuple[str, float]]:
    values = [1000 * value for value in values_s] or [0.0]  # as vLLM, for answers of one piece
    # Linear between neighbours, as numpy's percentile.
    last = quantiles(values, n=100, method="inclusive")[-1] if len(values) > 1 else values[0]
    found = {"mean": fmean(values), "median": median(values), "std": pstdev(values), "p99": last}
    return [(f"{kind}_{name}_ms", value) for kind, value in found.items()]


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
