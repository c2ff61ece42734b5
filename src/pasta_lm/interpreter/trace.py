"""One response as data: every token, when it was decoded and fed; and as JSON.

Steps count forward passes after the prefill from 0; times are seconds from a monotonic clock that
the engine reads and hands in. Source: PASTA, section 5.1 (critical path, speedup, parallelism).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import ClassVar

from pasta_lm.errors import InputError
from pasta_lm.interpreter.positions import Join

TRACE_VERSION = 1


class Kind(StrEnum):
    """How a figure or a trace came about; it is printed beside every number."""

    GENERATED = "generated"  # the model chose the text
    REPLAYED = "replayed"  # the text was given, the engine's work was real
    RANDOM_WEIGHTS = "random-weights"  # text was chosen or given, but the weights mean nothing
    SIMULATED = "simulated"  # no model ran


class Role(StrEnum):
    """The role of a token in PASTA-LANG."""

    CONTENT = "content"
    THOUGHT = "thought"  # before the answer; the marks around it have no text
    TOPIC = "topic"
    TAG = "tag"


WORDS = (Role.CONTENT, Role.THOUGHT)  # the roles of what is neither a tag nor a topic


@dataclass(slots=True)
class TokenRecord:
    """One token of one thread, from the step that decoded it to the step that fed it."""

    thread: int
    token: int | None  # its id, where the engine has ids
    text: str  # empty for tags and incomplete characters; of a prefix: its part of the answer
    role: Role
    decoded_step: int  # the step whose logits it was chosen from; -1 is the prefill
    t_s: float  # when, in seconds since the request began
    is_forced: bool = False
    fed_step: int | None = None  # the step that fed it; None if the response ended first
    slot: int | None = None
    position: int | None = None
    depth: int | None = None
    tag: str | None = None  # the spelling of a tag piece, also where the grammar has no such tag
    forks: int | None = None  # the thread that this token, the end of a promise, forks


@dataclass(slots=True)
class ThreadRecord:
    """One thread."""

    id: int
    parent: int | None
    topic: str | None
    promised_tokens: int | None
    num_tokens: int = 0
    start_step: int | None = None  # the step that fed its first token
    end_step: int | None = None  # the step that fed its last token
    finish_reason: str | None = None


@dataclass(slots=True)
class SyncRecord:
    """One sync: the threads that it joined, and the step that fed it."""

    thread: int
    joined: list[int]
    step: int | None
    position: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceNews:
    """What a trace has more than at an earlier time; copies, which the response does not change."""

    kind: Kind
    prefill_s: float
    step_s: tuple[float, ...]
    threads: tuple[ThreadRecord, ...]
    tokens: tuple[TokenRecord, ...]
    fed: tuple[tuple[int, TokenRecord], ...]  # fed since: earlier tokens, by index in the trace
    syncs: tuple[SyncRecord, ...]


@dataclass(slots=True, kw_only=True, repr=False)
class Trace:
    """Everything that happened in one response."""

    kind: Kind
    version: int = TRACE_VERSION
    model: str | None = None
    engine: str | None = None
    strategy: str | None = None
    positions: str | None = None
    join: str = Join.SHARED.value
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0  # tokens of the prompt whose keys another request had computed
    finish_reason: str | None = None
    forward_passes: int = 0  # passes after the prefill in which this response took part
    critical_path: int = 0  # largest depth; the number of passes if threads are unlimited
    num_illegal: int = 0  # tags emitted where the grammar has none
    num_recomputed: int = 0  # tokens that syncs fed again; no other count has them
    prefill_s: float = 0.0
    wall_s: float = 0.0
    step_s: list[float] = field(default_factory=list)  # end of each step since the request began
    threads: list[ThreadRecord] = field(default_factory=list)
    tokens: list[TokenRecord] = field(default_factory=list)
    syncs: list[SyncRecord] = field(default_factory=list)

    picture: ClassVar[Callable[[Trace], str] | None] = None  # HTML; ``view.page`` sets it

    @property
    def num_content_tokens(self) -> int:
        """Return the number of tokens of thought and answer, without tags and topics."""
        return sum(token.role in WORDS for token in self.tokens)

    @property
    def num_thought_tokens(self) -> int:
        return sum(token.role is Role.THOUGHT for token in self.tokens)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def parallelism(self) -> float:
        """Return fed content tokens / critical path; exactly 1 for one thread."""
        fed = [token for token in self.tokens if token.fed_step is not None]
        num_content = sum(token.role in WORDS for token in fed)
        is_parallel = len(self.threads) > 1
        return parallelism(num_content, self.critical_path, is_parallel=is_parallel)

    def speedup_over_text(self, num_text_tokens: int) -> float:
        """Return the theoretical speedup over the text without tags, decoded by one thread."""
        is_cut = self.finish_reason != "stop"  # then the last token is decoded, and never fed
        is_parallel = len(self.threads) > 1
        num_text_tokens += self.num_thought_tokens
        return speedup_over_text(
            num_text_tokens, self.critical_path, is_parallel=is_parallel, is_cut=is_cut
        )

    @property
    def tokens_per_s(self) -> float | None:
        """Return content tokens per second of wall clock; None without a real clock."""
        is_timed = self.kind is not Kind.SIMULATED and self.wall_s > 0
        return self.num_content_tokens / self.wall_s if is_timed else None

    def usage(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_tokens,
            "total_tokens": self.num_prompt_tokens + self.num_tokens,
        }

    def tokens_of(self, thread: int) -> list[TokenRecord]:
        return [token for token in self.tokens if token.thread == thread]

    def in_reading_order(self) -> Iterator[TokenRecord]:
        """Yield all tokens: a block behind the token that forks it, else behind its parent."""
        by_thread = self.by_thread()
        forked = {token.forks for token in self.tokens}

        def of_thread(number: int) -> Iterator[TokenRecord]:
            for token in by_thread[number]:
                yield token
                if token.forks is not None:
                    yield from of_thread(token.forks)
            for other in self.threads:
                if other.parent == number and other.id not in forked:
                    yield from of_thread(other.id)

        return of_thread(0) if self.threads else iter(())

    def by_thread(self) -> dict[int, list[TokenRecord]]:
        tokens: dict[int, list[TokenRecord]] = {thread.id: [] for thread in self.threads}
        for token in self.tokens:
            tokens[token.thread].append(token)
        return tokens

    def __repr__(self) -> str:
        threads = f"{len(self.threads)} thread{'s' * (len(self.threads) != 1)}"
        end = self.finish_reason or "unfinished"
        return f"<Trace {self.kind}: {threads}, {self.num_tokens} tokens, {end}>"

    def _repr_html_(self) -> str | None:
        return None if Trace.picture is None else Trace.picture(self)

    def to_json(self, indent: int | None = None) -> str:
        derived = {name: getattr(self, name) for name in ("parallelism", "num_content_tokens")}
        data = {**asdict(self), **derived, "usage": self.usage()}
        return json.dumps(data, indent=indent, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Trace:
        try:
            data = json.loads(text)
        except json.JSONDecodeError as exc:
            where = f"line {exc.lineno}, column {exc.colno}"
            raise InputError(f"the trace is not JSON: {exc.msg} at {where}") from exc
        version = data.get("version") if isinstance(data, dict) else None
        if version != TRACE_VERSION:
            reason = f"not a trace of version {TRACE_VERSION} (found version: {version})"
            raise InputError(reason, hint="traces are written by `pasta run --trace FILE`")
        try:
            values = {field.name: data[field.name] for field in fields(cls)}
            values["kind"] = Kind(data["kind"])
            values["threads"] = [ThreadRecord(**row) for row in data["threads"]]
            values["tokens"] = [
                TokenRecord(**row | {"role": Role(row["role"])}) for row in data["tokens"]
            ]
            values["syncs"] = [SyncRecord(**row) for row in data["syncs"]]
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            raise InputError(f"the trace is damaged: {exc}") from exc
        return cls(**values)


# The metrics of speed, each defined once. Both sides of a ratio count fed tokens: the last token of
# a cut answer is decoded and never fed. One thread has parallelism and theoretical speedup exactly
# 1. A path of no token counts as one.


def parallelism(num_content_tokens: int, critical_path: int, *, is_parallel: bool = True) -> float:
    """Return content tokens / critical path; below 1 the tags cost more than threads gain."""
    return num_content_tokens / max(critical_path, 1) if is_parallel else 1.0


def theoretical_speedup(baseline_path: int, critical_path: int) -> float:
    """Return critical path of the baseline's answer / critical path of this answer."""
    return max(baseline_path, 1) / max(critical_path, 1)


def speedup_over_text(
    num_text_tokens: int, critical_path: int, *, is_parallel: bool, is_cut: bool = False
) -> float:
    """Return the speedup over the same text in one thread; cut text has a last token not fed."""
    return theoretical_speedup(num_text_tokens - is_cut, critical_path) if is_parallel else 1.0


def realised_speedup(baseline_s: float, wall_s: float) -> float:
    """Return seconds of the baseline / seconds of this answer: same engine, machine and run."""
    return baseline_s / wall_s


def efficiency(realised: float, theoretical: float) -> float:
    return realised / theoretical
