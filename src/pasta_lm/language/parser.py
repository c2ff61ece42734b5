"""Turn lexemes, from text or from token ids, into events; a table says which are legal.

Knows nothing of spelling, engines or limits: a sync is grammatical in the main thread whether or
not anything is unjoined. ``max_depth`` is the one number beside the table: a promise opens a level
of blocks, in annotator form the block itself does, and a level too many is illegal.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Final

from pasta_lm.errors import PastaSyntaxError
from pasta_lm.language import events
from pasta_lm.language.events import Event, Lexeme, LexemeKind
from pasta_lm.language.faults import Fault


class Form(StrEnum):
    """The spellings of one answer, and the inside of one of its blocks."""

    WRITTEN = "written"  # every promise is followed by its block: stored and trained on
    MAIN = "main"  # text, promises and syncs, as the main thread decodes them
    ANNOTATOR = "annotator"  # blocks that carry their topics, and syncs, as a teacher writes them
    BLOCK = "block"  # the inside of one block, as its thread decodes it, up to its ``</async>``
    FORKED = "forked"
    """APAR's table: text and forks. The promise's opening piece is a whole promise, without topic
    or length, and there is no sync. Token ids alone spell it."""


FORK_TOPIC: Final = "fork"  # the topic of every block of the forked form


class State(Enum):
    """Where a parser stands."""

    OUTSIDE = "outside every block"
    TOPIC = "in the topic of a promise"
    PROMISED = "between a promise and its block"
    INSIDE = "inside a block"
    ENDED = "after the end of the block"


TRANSITIONS: Final[dict[Form, dict[tuple[State, LexemeKind], State]]] = {
    Form.WRITTEN: {
        (State.OUTSIDE, LexemeKind.TEXT): State.OUTSIDE,
        (State.OUTSIDE, LexemeKind.SYNC): State.OUTSIDE,
        (State.OUTSIDE, LexemeKind.PROMISE_OPEN): State.TOPIC,
        (State.TOPIC, LexemeKind.TEXT): State.TOPIC,
        (State.TOPIC, LexemeKind.PROMISE_CLOSE): State.PROMISED,
        (State.PROMISED, LexemeKind.ASYNC_OPEN): State.INSIDE,
        (State.INSIDE, LexemeKind.TEXT): State.INSIDE,
        (State.INSIDE, LexemeKind.PROMISE_OPEN): State.TOPIC,
        (State.INSIDE, LexemeKind.ASYNC_CLOSE): State.OUTSIDE,  # INSIDE while one is still open
    },
    Form.MAIN: {
        (State.OUTSIDE, LexemeKind.TEXT): State.OUTSIDE,
        (State.OUTSIDE, LexemeKind.SYNC): State.OUTSIDE,
        (State.OUTSIDE, LexemeKind.PROMISE_OPEN): State.TOPIC,
        (State.TOPIC, LexemeKind.TEXT): State.TOPIC,
        (State.TOPIC, LexemeKind.PROMISE_CLOSE): State.OUTSIDE,
    },
    Form.ANNOTATOR: {
        (State.OUTSIDE, LexemeKind.TEXT): State.OUTSIDE,
        (State.OUTSIDE, LexemeKind.SYNC): State.OUTSIDE,
        (State.OUTSIDE, LexemeKind.ASYNC_OPEN): State.INSIDE,
        (State.INSIDE, LexemeKind.TEXT): State.INSIDE,
        (State.INSIDE, LexemeKind.ASYNC_OPEN): State.INSIDE,
        (State.INSIDE, LexemeKind.ASYNC_CLOSE): State.OUTSIDE,  # INSIDE while one is still open
    },
    Form.BLOCK: {
        (State.INSIDE, LexemeKind.TEXT): State.INSIDE,
        (State.INSIDE, LexemeKind.PROMISE_OPEN): State.TOPIC,
        (State.TOPIC, LexemeKind.TEXT): State.TOPIC,
        (State.TOPIC, LexemeKind.PROMISE_CLOSE): State.INSIDE,
        (State.INSIDE, LexemeKind.ASYNC_CLOSE): State.ENDED,
    },
    Form.FORKED: {
        (State.OUTSIDE, LexemeKind.TEXT): State.OUTSIDE,
        (State.OUTSIDE, LexemeKind.PROMISE_OPEN): State.OUTSIDE,
    },
}

# The fault of a lexeme that the table does not allow: by the state if it is here, else by its kind.
_FAULTS_BY_STATE: Final = {
    State.TOPIC: Fault.MALFORMED,
    State.PROMISED: Fault.PROMISE_WITHOUT_BLOCK,
    State.ENDED: Fault.AFTER_END,
}
_FAULTS_BY_KIND: Final = {
    LexemeKind.PROMISE_OPEN: Fault.PROMISE_IN_ANNOTATOR,
    LexemeKind.PROMISE_CLOSE: Fault.MALFORMED,
    LexemeKind.ASYNC_OPEN: Fault.BLOCK_WITHOUT_PROMISE,
    LexemeKind.ASYNC_CLOSE: Fault.STRAY_CLOSE,
    LexemeKind.SYNC: Fault.SYNC_IN_BLOCK,
}


def opens_level(form: Form, kind: LexemeKind) -> bool:
    """Return whether this kind of lexeme begins a level of blocks, which ``max_depth`` bounds."""
    opens_block = form is Form.ANNOTATOR and kind is LexemeKind.ASYNC_OPEN
    return kind is LexemeKind.PROMISE_OPEN or opens_block


_LEGAL: Final[dict[tuple[Form, State, bool], frozenset[LexemeKind]]] = {
    (form, state, can_nest): frozenset(
        kind
        for here, kind in TRANSITIONS[form]
        if here is state and (can_nest or not opens_level(form, kind))
    )
    for form in Form
    for state in State
    for can_nest in (False, True)
}


class Parser:
    """Lexemes in, events out, for one form; an illegal lexeme raises and changes nothing.

    All of its state is immutable, so ``copy.copy`` returns an independent parser in the same state.
    """

    def __init__(self, form: Form | str = Form.WRITTEN, max_depth: int = 1) -> None:
        self._form = Form(form)
        self._max_depth = max_depth
        self.depth = 1 if self._form is Form.BLOCK else 0
        self._topic: tuple[str, ...] = ()
        self._enter(State.INSIDE if self._form is Form.BLOCK else State.OUTSIDE)

    def fault(self, lexeme: Lexeme) -> Fault | None:
        kind = lexeme.kind
        if kind in self.legal:
            if kind is not LexemeKind.ASYNC_OPEN:
                return None
            if self._form is Form.ANNOTATOR:  # the only form with a topic in an opening tag
                return Fault.BLOCK_WITHOUT_TOPIC if lexeme.topic is None else None
            return Fault.UNKNOWN_ATTRIBUTE if lexeme.topic is not None else None
        if kind is LexemeKind.FAULT:
            return lexeme.problems[0].fault
        if (self.state, kind) in TRANSITIONS[self._form]:
            return Fault.NESTED
        if self.state is State.PROMISED and kind in (LexemeKind.TEXT, LexemeKind.SYNC):
            return Fault.BETWEEN
        if self._form not in (Form.WRITTEN, Form.ANNOTATOR) and kind is LexemeKind.ASYNC_OPEN:
            return Fault.BLOCK_IN_MAIN
        return _FAULTS_BY_STATE.get(self.state) or _FAULTS_BY_KIND[kind]

    def feed(self, lexeme: Lexeme) -> list[Event]:
        """Return the events that a lexeme completes; a ``PastaSyntaxError`` changes no state."""
        if lexeme.kind not in self.legal or lexeme.kind is LexemeKind.ASYNC_OPEN:
            wrong = self.fault(lexeme)
            if wrong is not None:
                message = wrong.message(self._detail(lexeme, wrong))
                raise PastaSyntaxError(f"{wrong.code}: {message}", hint=wrong.hint)
        return self._step(lexeme)

    def close(self) -> list[Event]:
        """End the lexemes; a ``PastaSyntaxError`` if a promise or a block is unfinished."""
        if self.state in (State.OUTSIDE, State.ENDED):
            return []
        if self._form is Form.BLOCK and self.state is State.INSIDE:
            return self._step(Lexeme(LexemeKind.ASYNC_CLOSE))
        wrong = {
            State.TOPIC: Fault.UNFINISHED,
            State.PROMISED: Fault.PROMISE_WITHOUT_BLOCK,
            State.INSIDE: Fault.UNCLOSED_BLOCK,
        }[self.state]
        message = wrong.message("its topic is open")
        raise PastaSyntaxError(f"{wrong.code}: {message}", hint=wrong.hint)

    def _step(self, lexeme: Lexeme) -> list[Event]:
        kind = lexeme.kind
        if kind is LexemeKind.TEXT:
            if self.state is State.TOPIC:
                self._topic += (lexeme.text,)
                return []
            return [events.Text(lexeme.text)] if lexeme.text else []
        after = TRANSITIONS[self._form][self.state, kind]
        if kind is LexemeKind.ASYNC_OPEN:
            self.depth += 1
        elif kind is LexemeKind.ASYNC_CLOSE:
            self.depth -= 1
            if self.depth > 0:
                after = State.INSIDE
        self._enter(after)
        return self._report(lexeme)

    def _report(self, lexeme: Lexeme) -> list[Event]:
        match lexeme.kind:
            case LexemeKind.PROMISE_OPEN if self._form is Form.FORKED:
                return [events.Promise(FORK_TOPIC, None)]
            case LexemeKind.PROMISE_CLOSE:
                topic, self._topic = "".join(self._topic), ()
                assert lexeme.units is not None, "a closing piece has its length"
                return [events.Promise(topic, lexeme.units)]
            case LexemeKind.ASYNC_OPEN:
                return [events.AsyncOpen(lexeme.topic)]
            case LexemeKind.ASYNC_CLOSE:
                return [events.AsyncClose()]
            case LexemeKind.SYNC:
                return [events.Sync()]
            case _:
                return []

    def _enter(self, state: State) -> None:
        self.state = state
        # Looked up once a state: masks ask for it at every token.
        self.legal = _LEGAL[self._form, state, self.depth < self._max_depth]

    def _detail(self, lexeme: Lexeme, wrong: Fault) -> str:
        if lexeme.problems:
            return lexeme.problems[0].detail
        if wrong is Fault.NESTED:
            return f"{self._max_depth} at most"
        return "topic" if wrong is Fault.UNKNOWN_ATTRIBUTE else lexeme.kind.value
