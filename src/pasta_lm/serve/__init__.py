"""An OpenAI-compatible HTTP server in front of one engine; here, the limits of a recipe file."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from pasta_lm.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The limits of one request; larger numbers of tokens and threads are lowered to these."""

    body_bytes: int = 2 * 1024 * 1024
    messages: int = 512
    prompts: int = 64  # in one completion request; queued one by one
    n: int = 16  # more is refused: a client counts on the number of its choices
    stops: int = 16
    stop_characters: int = 256
    tokens: int = 4096  # all threads together
    default_tokens: int = 1024  # when a request does not say
    tokens_per_thread: int = 1024  # in one block
    threads: int = 65  # that decode in the same step
    blocks: int = 64  # threads of a whole response


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """The numbers of requests that run and wait, and the time that everything may take."""

    running: int = 256  # as far as the cache has room
    waiting: int = 512  # beyond it: 503
    wait_s: float = 60.0  # longest time without running; then 503
    wall_s: float = 600.0  # longest time that a request may run
    stall_s: float = 60.0  # longest time of one step
    read_s: float = 20.0  # longest time until the body of a request has come
    send_s: float = 30.0  # longest time that a piece of a stream may take to be sent
    ping_s: float = 15.0  # a comment is sent when a stream was silent for this long
    drain_s: float = 30.0  # after SIGTERM, time for what runs


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeRecipe:
    """The settings of ``pasta serve`` that have no flag."""

    limits: Bounds = field(default_factory=Bounds)
    queue: Queue = field(default_factory=Queue)
    cors_origins: tuple[str, ...] = ()  # web sites that may call this server from a browser
    pool_tokens: int | None = None  # cache entries for all requests together
    cache_memory: str | None = None  # the same as memory: 2GiB, or 40% of what is free
    shares_prefixes: bool = True  # what prompts have in common at their beginning is computed once
    strategy: str = "pasta"  # when a request does not say

    def __post_init__(self) -> None:
        if self.pool_tokens is not None and self.cache_memory is not None:
            raise UsageError("pool_tokens and cache_memory both size the cache", hint="give one")
        for table in ("limits", "queue"):
            for key, value in asdict(getattr(self, table)).items():
                if not value >= (0 if key in ("waiting", "blocks", "drain_s") else 1e-3):
                    raise UsageError(f"{table}.{key} is {value}, which is too small")
        if self.limits.tokens_per_thread < 3:
            raise UsageError("limits.tokens_per_thread must be at least 3: two tags and a token")
