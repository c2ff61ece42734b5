"""Send 32 streams at once to a server of the built-in model: are all complete and none mixed?

    PYTHONPATH=. python benchmarks/serving_load.py OUT.json [--streams 32] [--rounds 2]

In each round every stream replays an answer of its own with seven blocks, eight threads with main:
the model computes every pass, the tokens are given, so that the number of threads is certain. Then
the model answers questions of its own accord, all at once and a few of them alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.language import parse
from pasta_lm.language.document import Document
from pasta_lm.serve.app import create_app
from pasta_lm.serve.backends import Events, Prompt, TorchBackend
from pasta_lm.serve.settings import Queue, ServeRecipe
from pasta_lm.strategies.model import Pasta
from tests.serve.conftest import serving, streamed, text_of
from tests.serve.load import CHAT_PATH, resident_bytes

TOPICS = ("red", "blue", "green", "black", "white", "brown", "grey")
QUESTIONS = ("Three tips for {}", "Explain {} to a child", "Pros and cons of {}", "What is {}?")
SUBJECTS = ("sleep", "tea", "bicycles", "chess", "rain", "bread", "maps", "music")


def script_of(name: str) -> Document:
    """Return an answer of seven blocks whose every block names its prompt."""
    blocks = "".join(f'<async topic="{one}"> {name} is {one}.</async>' for one in TOPICS)
    return parse(f"Of {name}:{blocks}<sync/> So much of {name}.", "annotator")


class Replaying(TorchBackend):
    """The local engine; a prompt that begins with REPLAY has its answer given."""

    def __init__(self, model: Pasta) -> None:
        super().__init__(model, "builtin")
        self.vocabulary = model.engine.loaded.vocabulary
        self.may_step = threading.Event()
        self.num_threads: list[int] = []

    def prepare(self, prompt: Prompt, params: SamplingParams) -> Request:
        """Return the request, with the answer that it replays."""
        request = super().prepare(prompt, params)
        text = prompt.content[-1]["content"]  # type: ignore[index]
        if not text.startswith("REPLAY"):  # type: ignore[union-attr]
            return request
        script = script_of(text.split()[-1]).with_lengths(self.vocabulary.count_tokens)  # type: ignore[union-attr]
        return replace(request, forced=self.vocabulary.encode_document(script))

    def step(self) -> Events:
        """Run a pass when all streams are there, and note how many threads decode."""
        if not self.may_step.is_set():
            time.sleep(0.01)
            return []
        events = super().step()
        self.num_threads.append(sum(one.num_running for one in self.threads().values()))
        return events


async def ask_all(url: str, backend: Replaying, app: Any, contents: list[str], tokens: int) -> Any:
    """Return each prompt's text and number of threads, asked at once."""
    backend.may_step.clear()
    async with httpx.AsyncClient(base_url=url, timeout=None) as client:

        async def one(content: str) -> tuple[str, int]:
            body = {"messages": [{"role": "user", "content": content}], "max_tokens": tokens}
            usage = {"stream_options": {"include_usage": True}}
            reply = await client.post(CHAT_PATH, json={**body, "stream": True, **usage})
            pieces = streamed(reply)
            return text_of(pieces), len(pieces[-1]["pasta"]["choices"][0]["threads"])

        asked = asyncio.gather(*map(one, contents))
        while app.state.service.engine.load.num_running < len(contents):
            await asyncio.sleep(0.05)
        backend.may_step.set()
        return await asked


def main() -> None:
    """Run the rounds and write the figures after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=40, help="of an answer that is not replayed")
    given = parser.parse_args()
    model = Pasta.from_pretrained()
    backend = Replaying(model)
    hours = Queue(stall_s=3600, wall_s=36_000, wait_s=36_000)
    app = create_app(backend, ServeRecipe(queue=hours))
    figures: dict[str, Any] = {"streams": given.streams, "rounds": []}

    def asked(url: str, contents: list[str], tokens: int) -> list[tuple[str, int]]:
        backend.num_threads.clear()
        passes, began_s = model.engine.num_passes, time.perf_counter()
        found: list[tuple[str, int]] = asyncio.run(ask_all(url, backend, app, contents, tokens))
        figures["rounds"].append(
            {
                "threads_of_a_stream": sorted({num for _, num in found}),
                "most_threads_in_a_pass": max(backend.num_threads),
                "passes": model.engine.num_passes - passes,
                "wall_s": round(time.perf_counter() - began_s, 1),
                "resident_mib": resident_bytes() // 2**20,
                "free_pages": model.engine.pool.num_free_pages,
                "pages": model.engine.pool.num_pages,
            }
        )
        given.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        return found

    with serving(app) as (_, url):
        names = [f"n{number}" for number in range(given.streams)]
        for _ in range(given.rounds):
            found = asked(url, [f"REPLAY {name}" for name in names], 300)
            wrong = [
                name
                for name, (text, _) in zip(names, found, strict=True)
                if text != script_of(name).plain_text
            ]
            figures["rounds"][-1]["incomplete_or_mixed"] = wrong
        questions = [one.format(subject) for subject in SUBJECTS for one in QUESTIONS]
        together = asked(url, questions[: given.streams], given.tokens)
        alone = [asked(url, [question], given.tokens)[0] for question in questions[:4]]
        figures["alone_the_same"] = [a == b for a, b in zip(together, alone, strict=False)]
    given.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
