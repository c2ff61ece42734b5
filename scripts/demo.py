"""Replay one answer of several blocks on a small model with random weights, live.

The tokenizer is trained on the project's own text, the weights are random and fixed by a seed.
The text is given; forward passes, threads, cache and clock are real.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pasta_lm.cli.lanes import live_lanes
from pasta_lm.cli.picture import picture, summary
from pasta_lm.cli.scenes import SCENES
from pasta_lm.cli.terminal import can_animate, console, glyphs
from pasta_lm.language import parse

if TYPE_CHECKING:
    from pasta_lm.engines.request import Answer, Request
    from pasta_lm.engines.torch.engine import TorchEngine

ROOT = Path(__file__).parents[1]
SHAPE = ROOT / "benchmarks" / "shapes" / "llama-30m.json"
HONEST = "replay: the text is given, the machine's work is real"


def build_engine() -> TorchEngine:
    """Build a random model around a tokenizer trained on the project's own documents."""
    import torch

    from pasta_lm.engines.torch.engine import TorchEngine
    from pasta_lm.engines.torch.loading import read_architecture
    from pasta_lm.engines.torch.random_model import random_model, train_tokenizer

    torch.set_num_threads(1)
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    texts = [page.read_text(encoding="utf-8") for page in pages]
    texts += [scene.answer for scene in SCENES.values()]
    tokenizer = train_tokenizer(texts, num_pieces=2000)
    return TorchEngine(random_model(read_architecture(SHAPE), tokenizer, name="random-30m"))


def decode(engine: TorchEngine, request: Request, *, shows: bool) -> Answer:
    """Decode one request, with its threads on the screen if it is one that can be watched."""
    from pasta_lm.engines.request import Finished

    answer = None
    if shows and can_animate():
        with live_lanes(console(sys.stderr)) as show:
            for event in engine.stream(request):
                show([event])
                answer = event.answer if isinstance(event, Finished) else answer
    if answer is None:
        (answer,) = engine.generate([request])[0]
    return answer


def main() -> None:
    """Warm up, decode sequentially, decode in parallel, and say what it came to."""
    from pasta_lm.engines.request import SamplingParams
    from pasta_lm.strategies import pasta, sequential

    out = console(sys.stdout)
    out.print(HONEST, style="bold")
    out.print("building a small model with random weights ...", style="dim")
    engine = build_engine()
    scene = SCENES["dinner"]
    vocabulary = engine.loaded.vocabulary
    prompt = vocabulary.encode_prompt(scene.prompt)
    document = parse(scene.answer, "annotator").with_lengths(vocabulary.count_tokens)
    params = SamplingParams(max_tokens=2048)
    one = sequential.replay(prompt, document, vocabulary, params)
    decode(engine, replace(one, params=SamplingParams(max_tokens=8)), shows=False)
    alone = decode(engine, one, shows=False)
    out.print(f"\n> {scene.prompt}\n", style="bold")
    answer = decode(engine, pasta.replay(prompt, document, vocabulary, params), shows=True)
    out.print(picture(answer.trace, out.width, glyphs(out)))
    out.print(f"\n{answer.text}\n")
    assert answer.text == alone.text
    out.print(f"{summary(answer.trace)}")
    out.print(
        f"sequentially, same engine: {alone.trace.wall_s:.2f} s, "
        f"{alone.trace.critical_path} tokens one after another"
    )
    out.print(HONEST, style="bold")


if __name__ == "__main__":
    main()
