"""The engine's loop without a model: an answer spelled in words, decoded pass by pass.

An answer is what main decodes, one word a token: ``<p`` opens a promise, ``>2`` closes it with two
units, ``|`` syncs; what else there is, is text. Blocks are spelled apart, without their tags. What
a thread has left to decode when its words are used up is its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pasta_lm.interpreter import (
    Command,
    End,
    Entries,
    Fork,
    Interpreter,
    Limits,
    Placed,
    Placement,
    PositionStrategy,
    Resume,
    Thread,
    ThreadState,
)
from pasta_lm.interpreter.commands import ASYNC_CLOSE, SYNC
from pasta_lm.language.lexer import Lexeme, LexemeKind
from tests.reference import PROMPT, Name, Place, Shape

OPEN, CLOSED = "<async>", "</async>"


def lexeme_of(word: str) -> Lexeme:
    """Return what a word says."""
    if word.startswith(">"):
        return Lexeme(LexemeKind.PROMISE_CLOSE, units=int(word[1:]))
    special = {"<p": Lexeme(LexemeKind.PROMISE_OPEN), "|": SYNC, CLOSED: ASYNC_CLOSE}
    return special.get(word, Lexeme(LexemeKind.TEXT, word))


@dataclass
class Lane:
    """A thread and the words that it has yet to decode."""

    thread: Thread
    words: Iterator[str]
    next_word: str | None = None
    promised: Thread | None = None
    joined: tuple[Thread, ...] | None = None


@dataclass(frozen=True)
class Fed:
    """One fed token."""

    step: int
    thread: int
    word: str
    placed: Placed


@dataclass
class Lockstep:
    """Decode one answer, every runnable thread one token a pass."""

    main: str
    blocks: Sequence[str] = ()
    num_prompt: int = 3
    strategy: PositionStrategy = PositionStrategy.PREDICT
    limits: Limits = field(default_factory=Limits)
    fed: list[Fed] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    num_passes: int = 0

    def __post_init__(self) -> None:
        """Begin behind the prompt, with main's first word decoded."""
        self.entries = Entries.of_prompt(range(self.num_prompt))
        self.interpreter = Interpreter(self.limits, self.entries.new_owner)
        self.placement = Placement(self.entries, self.strategy, self.interpreter.main)
        self.lanes = [Lane(self.interpreter.main, iter(self.main.split()))]
        self._decode()

    @property
    def shape(self) -> Shape:
        """Return what the answer's layout depends on."""
        main = [lexeme_of(word) for word in self.main.split()]
        return Shape(self.num_prompt, main, [len(block.split()) for block in self.blocks])

    def places(self) -> dict[Name, Place]:
        """Return where each token was fed and what it saw."""
        names = [(PROMPT, slot) for slot in range(self.num_prompt)]
        count: dict[int, int] = {}
        for fed in self.fed:
            index = count[fed.thread] = count.get(fed.thread, -1) + 1
            names.append((fed.thread, index))
        entries = self.entries
        return {
            name: Place(
                entries[query].position,
                frozenset(
                    other for key, other in enumerate(names) if entries.is_visible(query, key)
                ),
            )
            for query, name in enumerate(names)
        }

    def run(self) -> Lockstep:
        """Decode to the end."""
        while not self.interpreter.is_finished:
            self.step()
        return self

    def step(self) -> None:
        """Run one pass: feed what is pending, then let every running thread decode."""
        lanes = [lane for lane in self.lanes if lane.next_word is not None]
        lanes = [lane for lane in lanes if lane.thread.state is not ThreadState.WAITING]
        assert lanes, "nothing can be fed, but the response is not finished"
        for lane in sorted(lanes, key=lambda lane: (lane.joined is not None, lane.thread.id)):
            self._feed(lane)
        self.num_passes += 1
        self._decode()

    def _feed(self, lane: Lane) -> None:
        word = lane.next_word
        assert word is not None
        if lane.joined is None:
            placed = self.placement.feed(lane.thread, 0, promised=lane.promised)
        else:
            placed = self.placement.feed_sync(lane.thread, 0, lane.joined)
        self.fed.append(Fed(self.num_passes + 1, lane.thread.id, word, placed))
        lane.next_word = lane.promised = lane.joined = None

    def _decode(self) -> None:
        running = [lane for lane in self.lanes if lane.thread.state is ThreadState.RUNNING]
        for lane in sorted(running, key=lambda lane: lane.thread.reading_key):
            if lane.thread.state is ThreadState.RUNNING:
                self._take(lane)

    def _take(self, lane: Lane) -> None:
        thread = lane.thread
        forced = self.interpreter.forced(thread) is not None
        word = CLOSED if forced else next(lane.words, CLOSED if thread.parent else None)
        if word is None:
            self._carry_out(self.interpreter.end_of_text(thread))
            return
        lane.next_word = word
        lexeme = lexeme_of(word)
        if lexeme.kind is LexemeKind.TEXT and not thread.in_topic:
            self.interpreter.write(thread, word)
        num_children = len(thread.children)
        commands = self.interpreter.advance(thread, lexeme)
        if len(thread.children) > num_children:
            lane.promised = thread.children[-1]
            if thread.children[-1].id <= len(self.blocks):
                thread.children[-1].block_length = len(self._block(thread.children[-1])) + 2
        self._carry_out(commands)

    def _block(self, thread: Thread) -> list[str]:
        return self.blocks[thread.id - 1].split() if thread.id <= len(self.blocks) else []

    def _carry_out(self, commands: list[Command]) -> None:
        self.commands += commands
        for command in commands:
            match command:
                case Fork(child):
                    self.lanes.append(Lane(child, iter(self._block(child)), OPEN))
                case Resume(thread, joined):
                    self._lane(thread).joined = joined
                case End(thread):
                    self._end(thread)

    def _end(self, thread: Thread) -> None:
        """Forget what an ended thread would feed, unless it is the end of a block."""
        for lane in self.lanes:
            if lane.thread is thread and (thread.is_main or lane.next_word != CLOSED):
                lane.next_word = None

    def _lane(self, thread: Thread) -> Lane:
        return next(lane for lane in self.lanes if lane.thread is thread)
