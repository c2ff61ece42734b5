"""``pasta serve`` over the scripted engine, with the arguments ``FILE serve ...``.

No step decodes anything until FILE is there; for ``hang`` the first step never ends.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pasta_lm.cli import main
from pasta_lm.engines.scripted import ScriptedEngine
from pasta_lm.serve import backends
from pasta_lm.serve.backends import Events
from pasta_lm.strategies.model import Pasta
from tests.fakes.scripted_backend import ScriptedBackend
from tests.serve.load import script_of


class Slow(ScriptedBackend):
    file = ""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__(ScriptedEngine(script_of("slow", 7)))

    async def step(self) -> Events:
        if self.file == "hang":
            await asyncio.get_running_loop().run_in_executor(
                ThreadPoolExecutor(1), threading.Event().wait
            )
        if Path(self.file).exists():
            return await super().step()
        await asyncio.sleep(0.01)
        return []


def serve() -> None:
    Pasta.from_pretrained = lambda *_, **__: None  # type: ignore[assignment, method-assign, misc, return-value]
    backends.LocalBackend = Slow  # type: ignore[assignment, misc]
    Slow.file = sys.argv.pop(1)
    main()
