"""A benchmark in one file: a folder of prompts, each with an expression that answers match."""

from __future__ import annotations

import re
from pathlib import Path

from pasta_lab.evaluate.benchmark import Benchmark
from pasta_lm.engines.record import AnswerRecord
from pasta_lm.measure.answering import Prompt


class RegexBenchmark(Benchmark):
    """The first line of a file is the expression, the others are the prompt."""

    id = "regex"

    def __init__(self, folder: Path) -> None:
        files = sorted(folder.glob("*.txt"))
        texts = {file.stem: file.read_text("utf-8").partition("\n") for file in files}
        self.patterns = {name: pattern for name, (pattern, _, _) in texts.items()}
        self.prompts = [
            Prompt(name, prompt, group=name.split("-")[0]) for name, (_, _, prompt) in texts.items()
        ]

    def score(self, prompt: Prompt, answer: AnswerRecord) -> float:
        return float(bool(re.search(self.patterns[prompt.id], answer.text)))
