"""The state machine of one response: threads, visibility, positions, limits and its trace."""

from pasta_lm.interpreter.commands import Begin, Command, End, Finish, Fork, Resume
from pasta_lm.interpreter.entries import Entries, Entry
from pasta_lm.interpreter.interpreter import Interpreter
from pasta_lm.interpreter.join import Join
from pasta_lm.interpreter.limits import FinishReason, Limits
from pasta_lm.interpreter.placement import Placement, Placer
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.interpreter.thread import Thread, ThreadState
from pasta_lm.interpreter.trace import Kind, Role, Trace
from pasta_lm.interpreter.visibility import Row

__all__ = [
    "Begin",
    "Command",
    "End",
    "Entries",
    "Entry",
    "Finish",
    "FinishReason",
    "Fork",
    "Interpreter",
    "Join",
    "Kind",
    "Limits",
    "Placement",
    "Placer",
    "PositionStrategy",
    "Resume",
    "Role",
    "Row",
    "Thread",
    "ThreadState",
    "Trace",
]
