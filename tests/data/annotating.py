"""A small source of answers and the recipe that annotates it, for tests of whole runs."""

from __future__ import annotations

import json
from pathlib import Path

from pasta_lm.data.annotate_config import AnnotateConfig, FilterConfig, OutputConfig, TeacherConfig
from pasta_lm.data.sources import SourceConfig
from pasta_lm.remote.retry import RetryPolicy

AT_ONCE = RetryPolicy(max_requests=40, first_delay_s=0.001, max_delay_s=0.01)
"""Retries that wait for nothing."""


def write_source(path: Path, num_rows: int) -> Path:
    """Write answers of one to four paragraphs; every seventh has no answer."""
    with path.open("w", encoding="utf-8") as file:
        for index in range(num_rows):
            parts = [
                f"Paragraph {part} of answer {index} says that <sync/> is \u00e9crit &lt;sync/&gt;."
                for part in range(1 + index % 4)
            ]
            answer = "" if index % 7 == 6 else "\n\n".join(parts)
            row = {"id": f"r{index}", "instruction": f"Say {index}.", "output": answer}
            file.write(json.dumps(row) + "\n")
    return path


def recipe(source: Path, folder: Path, base_url: str, **teacher: object) -> AnnotateConfig:
    """Return a recipe that asks a scripted teacher."""
    keys = {"timeout_s": 5.0, "max_in_flight": 8, **teacher}
    return AnnotateConfig(
        source=SourceConfig(file=str(source)),
        output=OutputConfig(folder=str(folder)),
        teacher=TeacherConfig(base_url=base_url, model="scripted", **keys),  # type: ignore[arg-type]
        filters=FilterConfig(max_answer_characters=100_000),
    )
