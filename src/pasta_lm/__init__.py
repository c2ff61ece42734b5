"""The public names of the package, each imported when it is first used.

Importing this package imports nothing else, in particular not torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pasta_lm.engines.request import (
        Answer,
        Finished,
        SamplingParams,
        StructuredOutputs,
        Synced,
        TextDelta,
        ThreadEnded,
        ThreadStarted,
    )
    from pasta_lm.engines.scripted import ScriptedEngine
    from pasta_lm.errors import PastaError
    from pasta_lm.language import Document, parse
    from pasta_lm.parts.fields import Part
    from pasta_lm.strategies.model import Pasta
    from pasta_lm.teaching.run import teach

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "Document",
    "Finished",
    "Part",
    "Pasta",
    "PastaError",
    "SamplingParams",
    "StructuredOutputs",
    "ScriptedEngine",
    "Synced",
    "TextDelta",
    "ThreadEnded",
    "ThreadStarted",
    "__version__",
    "parse",
    "teach",
]

_MODULES = {
    "engines.request": "Answer Finished SamplingParams StructuredOutputs Synced TextDelta "
    "ThreadEnded ThreadStarted",
    "engines.scripted": "ScriptedEngine",
    "errors": "PastaError",
    "language": "Document parse",
    "teaching.run": "teach",
    "strategies.model": "Pasta",
    "parts.fields": "Part",
}
LAZY = {name: f"{__name__}.{module}" for module, text in _MODULES.items() for name in text.split()}


def __getattr__(name: str) -> object:
    """Load a public name from the module that defines it (PEP 562)."""
    if name not in LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(LAZY[name]), name)
    import_module("pasta_lm.view.page")  # draws answers and traces
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
