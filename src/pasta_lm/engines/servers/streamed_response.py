"""One response whose threads a stock server decodes: one streamed completion a thread.

Threads run on different clocks. A fork opens a completion while main's goes on; a sync ends
main's, and the join opens the next one. Every thread is a plain causal text, so its completion
is what the local engine decodes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from hashlib import blake2b

from pasta_lm.engines import ModelFacts
from pasta_lm.engines.live_thread import END_OF_TEXT, LiveThread
from pasta_lm.engines.request import StreamEvent
from pasta_lm.engines.response import Response
from pasta_lm.engines.servers.cluster import Connection
from pasta_lm.engines.servers.dialects import CompletionPiece, TokenRequest
from pasta_lm.errors import BrokenAnswerError, RemoteError
from pasta_lm.interpreter.thread import Thread
from pasta_lm.interpreter.trace import Trace
from pasta_lm.language.lexer import LexemeKind

MAX_ASKED_AGAIN = 8
"""Times that one token is asked for again because it was illegal; then it counts as malformed."""
MAX_FAVOURED = 1024
"""Tokens of a schema that are named to a server at once; of more, illegal ones are barred first."""


@dataclass(slots=True, eq=False)
class _Stream:
    """The open completion of one thread."""

    live: LiveThread
    request: TokenRequest
    refused: tuple[int, ...] = ()  # illegal ids that the server chose for the token that is due
    num_received: int = 0
    task: asyncio.Task[None] | None = None


class StreamedResponse:
    """Decode one response; its events go to a function."""

    def __init__(
        self, response: Response, server: Connection, model: ModelFacts,
        put: Callable[[StreamEvent], None],
    ) -> None:  # fmt: skip
        self.response = response
        self._server = server
        self._vocabulary = model.vocabulary
        self._eos_ids = frozenset(model.eos_ids)
        self._piece_ids = tuple(model.vocabulary.piece_ids.values())
        self._put = put
        self._began_s = time.perf_counter()
        self._streams: dict[int, _Stream] = {}  # by thread
        self._tasks: set[asyncio.Task[None]] = set()
        self._arrivals: asyncio.Queue[tuple[_Stream, CompletionPiece | Exception]] = asyncio.Queue()

    async def run(self) -> None:
        """Decode to the end; errors are those of ``CompletionsEngine.stream``."""
        response = self.response
        try:
            self._open_streams()
            while not response.is_finished:
                stream, arrived = await self._arrivals.get()
                if self._streams.get(stream.live.thread.id) is not stream:
                    continue  # closed meanwhile
                if isinstance(arrived, Exception):
                    raise self._error(arrived)
                self._take(stream, arrived)
                for done in [s for s in self._streams.values() if not self._reads(s.live)]:
                    self._forget(done)
                self._open_streams()
                if response.is_finished:
                    set_steps(response.trace)
                for event in response.drain():
                    self._put(event)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _error(self, error: Exception) -> Exception:
        if not isinstance(error, RemoteError) or not self.response.trace.tokens:
            return error
        text = self.response.interpreter.document().plain_text
        broken = BrokenAnswerError(error.message, text, hint=error.hint)
        broken.__cause__ = error
        return broken

    def _take(self, stream: _Stream, piece: CompletionPiece) -> None:
        response, live = self.response, stream.live
        t_s = time.perf_counter() - self._began_s
        response.begin_pass()
        response.trace.prefill_s = response.trace.prefill_s or t_s
        stream.num_received += len(piece.token_ids)
        for token in self._ids_of(piece):
            if token != END_OF_TEXT and self._must_ask_again(stream, token):
                self._ask_again(stream, token)
                break
            self._feed(live)
            response.take(live, token, t_s=t_s)
            stream.refused = ()
            if not self._reads(live):
                break
        else:
            if piece.finish_reason is not None:
                self._end(stream, piece.finish_reason)
        response.passed(t_s)

    def _end(self, stream: _Stream, reason: str) -> None:
        self._forget(stream)
        if not (num := stream.num_received) or reason not in ("stop", "length"):
            raise self._error(RemoteError(f"the server ended a completion ({reason}) after {num}"))

    @staticmethod
    def _reads(live: LiveThread) -> bool:
        return live.decodes and live.joined is None

    def _ids_of(self, piece: CompletionPiece) -> list[int]:
        ids = list(piece.token_ids)
        if piece.finish_reason == "stop":
            end = piece.matched if piece.matched is not None else min(self._eos_ids, default=None)
            if not ids or (ids[-1] != end and ids[-1] not in self._eos_ids):
                ids.append(END_OF_TEXT if end is None else end)
        return ids

    def _feed(self, live: LiveThread) -> None:
        """Place the token that a thread decoded last, behind those that it needs to be fed."""
        if live.next_token is None:
            return
        threads, thread = self.response.live, live.thread
        needed = [joined.id for joined in live.joined or ()]
        if thread.row is None and thread.fork_point is None:
            assert thread.parent is not None
            needed.append(thread.parent.id)
        for number in needed:
            if number in threads:
                self._feed(threads[number])
        self.response.feed(live)

    def _must_ask_again(self, stream: _Stream, token: int) -> bool:
        has_tried = len(stream.refused) >= MAX_ASKED_AGAIN and stream.live.matcher is None
        if has_tried or self._is_legal(stream.live, token):
            return False
        return self.response.interpreter.forced(stream.live.thread) is None

    def _is_legal(self, live: LiveThread, token: int) -> bool:
        legal, vocabulary = self.response.legal(live), self._vocabulary
        if live.matcher is not None:
            return token not in self._never_legal(live.thread) and live.matcher.allows(token)
        if token in self._eos_ids:
            return legal.end_of_text and not self.response.request.params.ignore_eos
        if (lexeme := vocabulary.id_to_lexeme(token)) is not None:
            return legal.allows(lexeme)
        lacks_text = legal.needs_text and token not in vocabulary.non_space
        breaks_topic = legal.in_topic and token in vocabulary.topic_forbidden
        return LexemeKind.TEXT in legal.kinds and not lacks_text and not breaks_topic

    def _ask_again(self, stream: _Stream, token: int) -> None:
        self._forget(stream)
        live, refused = stream.live, (*stream.refused, token)
        self._feed(live)
        tags = {*self._piece_ids, *self._eos_ids}
        legal = {tag for tag in tags if self._is_legal(live, tag)}
        # A topic that is full must end: no text is legal, which is more than can be barred.
        favoured = set() if LexemeKind.TEXT in self.response.legal(live).kinds else legal
        barred = {*refused, *tags} - legal
        if live.matcher is not None:
            allowed = live.matcher.allowed().nonzero()[:, 0].tolist()
            is_short = len(allowed) <= MAX_FAVOURED or len(refused) >= MAX_ASKED_AGAIN
            favoured = set(allowed) - barred if is_short else set()
        self._open(live, barred=barred, favoured=favoured, refused=refused)

    def _open_streams(self) -> None:
        for live in list(self.response.live.values()):
            if live.decodes and live.thread.id not in self._streams:
                self._feed(live)
                self._open(live, barred=self._never_legal(live.thread))

    def _never_legal(self, thread: Thread) -> set[int]:
        request = self.response.request
        ends = self._eos_ids if request.params.ignore_eos else frozenset()
        if not request.forks:
            return {*self._piece_ids, *ends}
        if not request.params.mask:
            return {*ends}
        never = {LexemeKind.ASYNC_OPEN}
        never.add(LexemeKind.ASYNC_CLOSE if thread.is_main else LexemeKind.SYNC)
        if len(thread.path) >= self.response.interpreter.limits.max_depth:
            never |= {LexemeKind.PROMISE_OPEN, LexemeKind.PROMISE_CLOSE}
        return self._pieces_of(never) | (ends if thread.is_main else self._eos_ids)

    def _pieces_of(self, kinds: Collection[LexemeKind]) -> set[int]:
        lexemes = {piece: self._vocabulary.id_to_lexeme(piece) for piece in self._piece_ids}
        return {piece for piece, lexeme in lexemes.items() if lexeme and lexeme.kind in kinds}

    def _open(
        self, live: LiveThread, *, barred: set[int], favoured: Collection[int] = (),
        refused: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        response, thread, params = self.response, live.thread, self.response.request.params
        prompt, limits = self._context(thread), response.interpreter.limits
        room = limits.max_tokens - response.interpreter.num_tokens
        if limits.max_tokens_per_thread is not None and not thread.is_main:
            room = min(room, limits.max_tokens_per_thread - thread.num_tokens)
        if limits.max_position is not None:
            room = min(room, limits.max_position + 1 - len(prompt))
        if live.max_tokens is not None:
            room = min(room, live.max_tokens - thread.num_tokens)
        if (expansion := response.request.expansion) is not None and thread.is_main:
            room = min(room, expansion.max_main_tokens + 1)  # an end-of-text, at the latest
        ends = {LexemeKind.SYNC if thread.is_main else LexemeKind.ASYNC_CLOSE}
        of_token = params.seed or 0, response.sample, thread.path, thread.num_tokens
        request = TokenRequest(
            prompt=prompt, max_tokens=1 if refused else max(1, room),
            temperature=params.temperature, top_p=params.top_p, top_k=params.top_k,
            min_p=params.min_p, bias=self._bias(thread), seed=seed_of(*of_token, len(refused)),
            barred=sorted(barred), favoured=sorted(favoured),
            stop_ids=sorted(self._pieces_of(ends)) if response.request.forks else (),
            ignore_eos=params.ignore_eos,
        )  # fmt: skip
        stream = self._streams[thread.id] = _Stream(live, request, refused)
        stream.task = asyncio.create_task(self._read(stream))
        self._tasks.add(stream.task)
        stream.task.add_done_callback(self._tasks.discard)

    def _bias(self, thread: Thread) -> dict[int, float]:
        params, bias = self.response.request.params, dict(self.response.request.params.logit_bias)
        if params.fork_bias and thread.is_main and self.response.request.forks:
            (fork,) = self._pieces_of({LexemeKind.PROMISE_OPEN})
            bias[fork] = bias.get(fork, 0.0) + params.fork_bias
        return bias

    def _context(self, thread: Thread) -> list[int]:
        assert thread.row is not None
        entries = self.response.placer.entries
        seen = entries.visible(thread.row)
        assert [entries[slot].position for slot in seen] == list(range(len(seen)))
        return [entries[slot].token for slot in seen]

    async def _read(self, stream: _Stream) -> None:
        try:
            async for piece in self._server.stream(stream.request):
                self._arrivals.put_nowait((stream, piece))
        except Exception as exc:  # raised where the arrivals are read: nothing waits in silence
            self._arrivals.put_nowait((stream, exc))

    def _forget(self, stream: _Stream) -> None:
        self._streams.pop(stream.live.thread.id, None)
        if stream.task is not None:
            stream.task.cancel()


def seed_of(seed: int, sample: int, path: tuple[int, ...], index: int, num_refused: int = 0) -> int:
    """Return the seed, below 2**31, of a completion from a token; after refusals it is another."""
    key = ",".join(map(str, (seed, sample, index, *path))) + f";{num_refused}" * (num_refused > 0)
    return int.from_bytes(blake2b(key.encode(), digest_size=4).digest(), "big") >> 1


def set_steps(trace: Trace) -> None:
    """Set the steps of a finished trace by depth: those of a local engine with unlimited threads.

    Threads on different clocks have no common passes. A step then ends when the last token that
    was chosen from it has come, or one from an earlier step.
    """
    trace.forward_passes = trace.critical_path
    trace.step_s = [trace.prefill_s] * trace.critical_path
    last_fed: dict[int, int] = {}
    for token in trace.tokens:
        if token.depth is not None:
            token.fed_step = token.depth - 1
        record = trace.threads[token.thread]
        before = last_fed.get(token.thread)
        if before is None:  # main's first token, or ``<async>``
            before = -1 if token.fed_step is None else token.fed_step - 1
            record.start_step = token.fed_step
        token.decoded_step = before
        if token.fed_step is not None:
            last_fed[token.thread] = record.end_step = token.fed_step
        if 0 <= before < len(trace.step_s):
            trace.step_s[before] = max(trace.step_s[before], token.t_s)
    for step in range(1, len(trace.step_s)):
        trace.step_s[step] = max(trace.step_s[step], trace.step_s[step - 1])
    fed = {(token.thread, token.position): token.fed_step for token in trace.tokens}
    for sync in trace.syncs:
        sync.step = fed[sync.thread, sync.position]
