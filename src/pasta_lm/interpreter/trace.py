"""One response as data: every token, when it was decoded and fed; and as JSON.

Steps count forward passes after the prefill from 0; times are seconds from a monotonic clock that
the engine reads and hands in. Knows nothing of engines.

Source: PASTA, section 5.1 (critical path, theoretical speedup, parallelism).
"""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum

from pasta_lm.errors import InputError
from pasta_lm.interpreter import speed
from pasta_lm.interpreter.join import Join

TRACE_VERSION = 1
_LATER_KEYS = {"join": Join.SHARED.value, "num_recomputed": 0, "num_cached_tokens": 0}
"""What older files do not have."""


class Kind(StrEnum):
    """How a figure or a trace came about; it is printed beside every number."""

    GENERATED = "generated"  # the model chose the text
    REPLAYED = "replayed"  # the text was given, the engine's work was real
    RANDOM_WEIGHTS = "random-weights"  # text was chosen or given, but the weights mean nothing
    SIMULATED = "simulated"  # no model ran


class Role(StrEnum):
    """The role of a token in PASTA-LANG."""

    CONTENT = "content"
    TOPIC = "topic"
    TAG = "tag"


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


@dataclass(slots=True, kw_only=True)
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
    num_cached_tokens: int = 0  # of the prompt, whose keys another request had computed
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

    @property
    def num_content_tokens(self) -> int:
        """Return how many tokens the answer has, tags and topics excluded."""
        return sum(token.role is Role.CONTENT for token in self.tokens)

    @property
    def num_tokens(self) -> int:
        """Return how many tokens all threads decoded, tags included."""
        return len(self.tokens)

    @property
    def parallelism(self) -> float:
        """Return content tokens / critical path."""
        return speed.parallelism(self.num_content_tokens, self.critical_path)

    @property
    def tokens_per_s(self) -> float | None:
        """Return content tokens per second of wall clock; None without a real clock."""
        is_timed = self.kind is not Kind.SIMULATED and self.wall_s > 0
        return self.num_content_tokens / self.wall_s if is_timed else None

    def usage(self) -> dict[str, int]:
        """Return token counts under the names that OpenAI's API gives them."""
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_tokens,
            "total_tokens": self.num_prompt_tokens + self.num_tokens,
        }

    def tokens_of(self, thread: int) -> list[TokenRecord]:
        """Return the tokens of one thread in order."""
        return [token for token in self.tokens if token.thread == thread]

    def _repr_html_(self) -> str:
        """Return the trace as a picture, for a notebook."""
        from pasta_lm.view.notebook import picture_html

        return picture_html(self)

    def to_json(self, indent: int | None = None) -> str:
        """Return the trace as JSON, its derived figures included for readers without this code."""
        derived = {
            "parallelism": self.parallelism,
            "num_content_tokens": self.num_content_tokens,
            "usage": self.usage(),
        }
        return json.dumps({**asdict(self), **derived}, indent=indent, ensure_ascii=False)

    def packed(self) -> str:
        """Return the trace in few characters, for files of many; clocks to the microsecond."""
        short = json.loads(self.to_json(), parse_float=lambda digits: round(float(digits), 6))
        text = json.dumps(short, ensure_ascii=False, separators=(",", ":"))
        return base64.b85encode(zlib.compress(text.encode())).decode("ascii")

    @classmethod
    def from_packed(cls, packed: str) -> Trace:
        """Read what ``packed`` wrote.

        Raises:
            InputError: not a packed trace, or of another version.
        """
        try:
            text = zlib.decompress(base64.b85decode(packed)).decode("utf-8")
        except (ValueError, zlib.error) as exc:
            raise InputError(f"the packed trace is damaged: {exc}") from exc
        return cls.from_json(text)

    @classmethod
    def from_json(cls, text: str) -> Trace:
        """Read what ``to_json`` wrote.

        Raises:
            InputError: not JSON, not a trace, or of another version.
        """
        try:
            data = json.loads(text)
        except json.JSONDecodeError as exc:
            where = f"line {exc.lineno}, column {exc.colno}"
            raise InputError(f"the trace is not JSON: {exc.msg} at {where}") from exc
        if not isinstance(data, dict) or data.get("version") != TRACE_VERSION:
            found = data.get("version") if isinstance(data, dict) else None
            raise InputError(
                f"not a trace of version {TRACE_VERSION} (found version: {found})",
                hint="traces are written by `pasta run --trace FILE`",
            )
        data = {**_LATER_KEYS, **data}
        try:
            values = {field.name: data[field.name] for field in fields(cls)}
            values["kind"] = Kind(data["kind"])
            values["threads"] = [ThreadRecord(**item) for item in data["threads"]]
            values["tokens"] = [
                TokenRecord(**{**item, "role": Role(item["role"])}) for item in data["tokens"]
            ]
            values["syncs"] = [SyncRecord(**item) for item in data["syncs"]]
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            raise InputError(f"the trace is damaged: {exc}") from exc
        return cls(**values)
