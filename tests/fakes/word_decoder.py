"""An answer spelled in words, decoded pass by pass by the response that every engine shares.

An answer is what main decodes, one word a token: ``<p`` opens a promise, ``>2`` closes it with two
units, ``|`` syncs; everything else is text. Blocks are spelled apart, without their tags. A thread
ends when its words are used up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pasta_lm.engines.live_thread import END_OF_TEXT
from pasta_lm.engines.request import Request
from pasta_lm.engines.response import Response
from pasta_lm.engines.scripted import WordIds
from pasta_lm.interpreter.limits import Limits
from pasta_lm.interpreter.placement import Entries, Placement
from pasta_lm.interpreter.positions import Join, PositionStrategy
from pasta_lm.interpreter.trace import Kind, Trace
from pasta_lm.language.lexer import Lexeme, LexemeKind
from pasta_lm.language.tags import ASYNC_CLOSE, ASYNC_OPEN, PROMISE_OPEN, SYNC, closing_piece
from pasta_lm.models.encoded import EncodedDocument
from tests.reference import PROMPT, Name, Place, Shape, is_visible, numbered

OPEN, CLOSED = ASYNC_OPEN, ASYNC_CLOSE
WORDS = WordIds()


def id_of(word: str) -> int:
    if word.startswith(">"):
        return WORDS.piece_id(closing_piece(int(word[1:])))
    pieces = {"<p": PROMISE_OPEN, "|": SYNC, OPEN: OPEN, CLOSED: CLOSED}
    return WORDS.piece_id(pieces[word]) if word in pieces else WORDS.encode(word)[0]


def lexeme_of(word: str) -> Lexeme:
    return WORDS.id_to_lexeme(id_of(word)) or Lexeme(LexemeKind.TEXT, word)


def ids_of(words: str) -> tuple[int, ...]:
    return tuple(map(id_of, words.split()))


@dataclass(frozen=True)
class Fed:
    step: int
    thread: int
    word: str
    placed: Placement


@dataclass
class WordDecoder:
    """Decode one answer, every runnable thread one token a pass."""

    main: str
    blocks: Sequence[str] = ()
    num_prompt: int = 3
    strategy: PositionStrategy = PositionStrategy.PREDICT
    limits: Limits = field(default_factory=Limits)
    join: Join = Join.SHARED
    num_passes: int = 0

    def __post_init__(self) -> None:
        """Begin behind the prompt, with main's first word decoded."""
        self.entries = Entries.of_prompt(range(self.num_prompt))
        forced = EncodedDocument(ids_of(self.main), tuple(map(ids_of, self.blocks)))
        request = Request(
            prompt=range(self.num_prompt), positions=self.strategy, join=self.join, forced=forced
        )
        trace = Trace(kind=Kind.SIMULATED)
        self.response = Response(request, 0, self.entries, WORDS, limits=self.limits, trace=trace)
        self.interpreter = self.response.interpreter
        self.response.take(self.response.live[0], END_OF_TEXT, t_s=0.0)

    @property
    def shape(self) -> Shape:
        main = [lexeme_of(word) for word in self.main.split()]
        return Shape(self.num_prompt, main, [len(block.split()) for block in self.blocks])

    @property
    def fed(self) -> list[Fed]:
        spelled = {id_of(word): word for word in f"{self.main} {' '.join(self.blocks)}".split()}
        spelled |= {id_of(OPEN): OPEN, id_of(CLOSED): CLOSED}
        found = {}
        for token in self.response.trace.tokens:
            if token.fed_step is not None:
                assert token.slot is not None
                assert token.position is not None
                assert token.depth is not None
                placed = Placement(token.slot, token.position, token.depth)
                word = spelled[token.token or 0]
                found[token.slot] = Fed(token.fed_step + 1, token.thread, word, placed)
        return [found[slot] for slot in sorted(found)]

    def places(self) -> dict[Name, Place]:
        names = numbered([PROMPT] * self.num_prompt + [fed.thread for fed in self.fed])
        entries = self.entries
        return {
            name: Place(
                entries[query].position,
                frozenset(
                    other for key, other in enumerate(names) if is_visible(entries, query, key)
                ),
            )
            for query, name in enumerate(names)
        }

    def run(self) -> WordDecoder:
        while not self.interpreter.is_finished:
            self.step()
        return self

    def step(self) -> None:
        """Run one pass: feed what is pending, then let every running thread decode."""
        response = self.response
        threads = response.threads_to_feed()
        assert threads, "nothing can be fed, but the response is not finished"
        response.begin_pass()
        for live in threads:
            response.feed(live)
        self.num_passes += 1
        response.passed(0.0)
        for live in response.threads_to_decode():
            if live.decodes:
                response.take(live, END_OF_TEXT, t_s=0.0)
