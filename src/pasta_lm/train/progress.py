"""How a training run reports: lines on standard error, and a log of every figure beside it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


def append_row(log: Path, row: Mapping[str, Any]) -> None:
    """Add a line of JSON to a log, with the time; its folder is made."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"time": time.time(), **row}) + "\n")


class Progress(TrainerCallback):
    """Writes each logged figure as a line of JSON, and says how long the rest will take."""

    def __init__(self, log: Path) -> None:
        """Append to a log."""
        self._log = log
        self._began: tuple[int, float] | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Remember where and when this run began."""
        self._began = (state.global_step, time.monotonic())

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Write the figures down; say the loss."""
        row = {"step": state.global_step, **(logs or {})}
        append_row(self._log, row)
        if "loss" in row:
            shown = f"loss {row['loss']:.4f}"
            if "margin" in row:
                shown += f"  margin {row['margin']:.2f}"
            line = f"step {state.global_step}/{state.max_steps}  {shown}  {self._left(state)}"
            print(line, file=sys.stderr, flush=True)  # noqa: T201

    def _left(self, state: TrainerState) -> str:
        assert self._began is not None
        first, start = self._began
        done = state.global_step - first
        seconds = (time.monotonic() - start) / max(done, 1) * (state.max_steps - state.global_step)
        return f"{seconds / 60:.1f} min left"
