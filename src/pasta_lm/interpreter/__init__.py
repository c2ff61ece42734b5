"""The state machine of one response: threads, visibility, positions, limits and its trace."""

from pasta_lm.interpreter.interpreter import Interpreter
from pasta_lm.interpreter.limits import FinishReason, Limits
from pasta_lm.interpreter.placement import Entries, Placement
from pasta_lm.interpreter.positions import Join, PositionStrategy
from pasta_lm.interpreter.thread import Thread, ThreadState
from pasta_lm.interpreter.trace import Kind, Role, Trace
from pasta_lm.interpreter.visibility import Row

__all__ = [
    "Entries",
    "FinishReason",
    "Interpreter",
    "Join",
    "Kind",
    "Limits",
    "Placement",
    "PositionStrategy",
    "Role",
    "Row",
    "Thread",
    "ThreadState",
    "Trace",
]
