"""The state machine of one response: threads, visibility, positions, limits and its trace."""

from pasta_lm.interpreter.entries import Entries
from pasta_lm.interpreter.interpreter import Interpreter
from pasta_lm.interpreter.join import Join
from pasta_lm.interpreter.limits import FinishReason, Limits
from pasta_lm.interpreter.placement import Placer
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.interpreter.trace import Kind, Role, Trace
from pasta_lm.interpreter.visibility import Row

__all__ = [
    "Entries",
    "FinishReason",
    "Interpreter",
    "Join",
    "Kind",
    "Limits",
    "Placer",
    "PositionStrategy",
    "Role",
    "Row",
    "Trace",
]
