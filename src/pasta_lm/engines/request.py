"""Requests to an engine, the events of a response, and the finished answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import inf, isfinite
from typing import Any, NamedTuple

from pasta_lm.errors import ContextLengthError, RequestError, UsageError
from pasta_lm.interpreter.limits import FinishReason, Limits
from pasta_lm.interpreter.positions import Join, PositionStrategy
from pasta_lm.interpreter.trace import Kind, Trace, TraceNews
from pasta_lm.language.document import Document
from pasta_lm.language.parser import Form
from pasta_lm.models.encoded import EncodedDocument
from pasta_lm.models.thinking import Thinking

Guesser = Callable[[Sequence[int]], Sequence[int]]
"""From all that a thread sees, the prompt first, to likely next tokens; they are checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputs:
    """What a text must match, in one of four ways; names as vLLM's."""

    json: Mapping[str, Any] | None = None  # a JSON schema
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None  # in the Lark form of llguidance
    is_inside: bool = False  # the JSON value stands inside an object or a list, which goes on

    def __post_init__(self) -> None:
        if len([name for name in STRUCTURES if getattr(self, name) is not None]) != 1:
            raise UsageError(f"structured outputs have exactly one of {', '.join(STRUCTURES)}")
        if self.choice == ():
            raise UsageError("structured outputs have no choice: it is empty")

    @property
    def kind(self) -> str:
        kind = next(name for name in STRUCTURES if getattr(self, name) is not None)
        return "JSON schema" if kind == "json" else kind


STRUCTURES = ("json", "regex", "choice", "grammar")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen and when a response ends. Names as OpenAI, vLLM and transformers."""

    max_tokens: int = 1024  # tokens of all threads together, tags included
    max_thinking_tokens: int | None = None  # those of a thought, at most
    temperature: float = 0.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0  # the least probability of a token, as a share of the likeliest one's
    seed: int | None = 0  # None draws a fresh seed for each request
    n: int = 1  # samples of one prompt; its entries are computed once
    stop: tuple[str, ...] = ()  # each ends the answer; matched inside one thread, then removed
    repetition_penalty: float = 1.0  # counts what the thread sees, never tag pieces
    presence_penalty: float = 0.0  # these two count what it sees of the answer, never tag pieces
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # added to these ids' logits
    fork_bias: float | None = None  # added where main opens a promise; None: as the model says
    max_threads: int | None = None  # threads that decode in the same step
    max_blocks: int = 64
    max_tokens_per_thread: int | None = None  # tokens of one block with its tags
    ignore_eos: bool = False  # go on at an end-of-text until a limit cuts (for benchmarks)
    mask: bool = True  # sample legal tags only; False measures the model without help
    logprobs: int | None = None  # fill ``Answer.logprobs``, each with this many candidates
    structured_outputs: StructuredOutputs | None = None  # what the answer must match; no forks

    def __post_init__(self) -> None:
        rules = {
            "temperature": (0 <= self.temperature < inf, "at least 0, and finite"),
            "top_p": (0 < self.top_p <= 1, "above 0 and at most 1"),
            "top_k": (self.top_k is None or self.top_k >= 1, "at least 1"),
            "max_thinking_tokens": ((self.max_thinking_tokens or 0) >= 0, "at least 0"),
            "n": (self.n >= 1, "at least 1"),
            "repetition_penalty": (0 < self.repetition_penalty < inf, "above 0, and finite"),
            "min_p": (0 <= self.min_p <= 1, "from 0 to 1"),
            "presence_penalty": (isfinite(self.presence_penalty), "finite"),
            "frequency_penalty": (isfinite(self.frequency_penalty), "finite"),
            "logit_bias": (all(map(isfinite, self.logit_bias.values())), "finite numbers by id"),
            "fork_bias": (isfinite(self.fork_bias or 0), "finite"),
            "logprobs": ((self.logprobs or 0) >= 0, "at least 0"),
            "stop": (not isinstance(self.stop, str) and all(self.stop), "non-empty strings"),
        }
        for name, (is_fine, rule) in rules.items():
            if not is_fine:
                raise UsageError(f"{name} is {getattr(self, name)!r}, but must be {rule}")
        self.limits()

    def resolved(self, seed: int, fork_bias: float) -> SamplingParams:
        """Return the parameters with this seed and bias of forks, where they have none."""
        seed = seed if self.seed is None else self.seed
        fork_bias = fork_bias if self.fork_bias is None else self.fork_bias
        return replace(self, seed=seed, fork_bias=fork_bias)

    @property
    def penalises(self) -> bool:
        return any((self.repetition_penalty - 1, self.presence_penalty, self.frequency_penalty))

    def limits(self, max_position: int | None = None) -> Limits:
        return Limits(
            max_tokens=self.max_tokens, max_threads=self.max_threads, max_blocks=self.max_blocks,
            max_tokens_per_thread=self.max_tokens_per_thread, max_position=max_position,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How a thread begins when main has ended."""

    prefix: tuple[int, ...]  # ids fed in one pass before it decodes; at least one, or ``behind``
    topic: str | None = None  # the topic of its block; None: it decodes the answer itself
    text: str = ""  # the part of its prefix that belongs to the answer
    num_seen: int | None = None  # the tokens of the prompt that it sees; None: behind main
    structured_outputs: StructuredOutputs | None = None  # what it must match
    stop: tuple[str, ...] | None = None  # strings that end it alone; None: those of the answer
    max_tokens: int | None = None  # it ends behind so many tokens
    is_scored: bool = False  # it ends behind its first token, whose scores are its answer
    after: tuple[int, ...] = ()  # the starts, by index, of threads that end before it begins
    behind: Callable[[Sequence[Sequence[int]]], Sequence[int]] | None = None
    """From what those decoded to all that it sees behind the prompt."""
    max_fed: int = 0  # tokens of that at most that none of them has fed


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """Threads that begin when main has ended, and write the answer instead of it."""

    starts: Callable[[str], Sequence[Start]]
    """From main's text to the threads that begin; if there are none, main's text is the answer."""
    max_main_tokens: int  # the number of tokens after which main ends at the latest
    known: tuple[Start, ...] = ()
    """All starts, if main decides nothing; their prefixes are given, and count for no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt and how to decode its answer."""

    prompt: Sequence[int]  # token ids; at least one
    params: SamplingParams = field(default_factory=SamplingParams)
    positions: PositionStrategy = PositionStrategy.PREDICT
    join: Join = Join.SHARED
    forks: bool = True  # false: no tag can be sampled, no promise forks
    form: Form = Form.MAIN  # the table of what main may say: MAIN, or FORKED for APAR
    expansion: Expansion | None = None  # threads that begin when main has ended; only without forks
    guesser: Guesser | None = None
    """Right guesses share a pass; none is made where a block can be deferred or aborted."""
    thinking: Thinking | None = None  # the marks of the thought that may come first
    forced: EncodedDocument | None = None  # decoded instead of the model's own answer
    strategy: str = "pasta"  # the strategy's name, for the trace
    traces: bool = False  # tell after each pass what the trace has more
    scores_forms: bool = False  # fill ``Answer.in_form``

    def new_trace(self, kind: Kind, *, engine: str, model: str | None) -> Trace:
        return Trace(
            kind=kind, model=model, engine=engine, strategy=self.strategy,
            positions=self.positions.value, join=self.join.value,
            num_prompt_tokens=len(self.prompt),
        )  # fmt: skip

    @property
    def max_entries(self) -> int:
        """Return the cache entries that it can need; a join can feed each decoded token again."""
        times_fed = 2 if self.join is Join.RECOMPUTE else 1
        num_decoded = times_fed * self.params.n * self.params.max_tokens
        return len(self.prompt) + num_decoded + self.num_given

    @property
    def num_given(self) -> int:
        """Return the entries that prefixes of its known threads need, over all samples."""
        return self.params.n * sum(len(start.prefix) + start.max_fed for start in self.known)

    @property
    def structures(self) -> list[tuple[str, StructuredOutputs]]:
        forms = ((f"part {start.topic!r}: ", start.structured_outputs) for start in self.known)
        pairs = ("", self.params.structured_outputs), *forms
        return [(name, form) for name, form in pairs if form is not None]

    def check(self, max_position: int | None, num_tokens: int) -> None:
        """Raise a ``RequestError`` for what no engine decodes, as a token that there is not."""
        if not self.prompt:
            raise RequestError("the prompt is empty", hint="give at least one token")
        forced = [] if self.forced is None else [self.forced.main, *self.forced.blocks]
        ids = {*self.prompt, *self.params.logit_bias}.union(*forced)
        if min(ids) < 0 or max(ids) >= num_tokens:
            wrong = min(ids) if min(ids) < 0 else max(ids)
            problem = f"there is no token {wrong}: the model has {num_tokens} tokens"
            raise RequestError(problem, hint="encode text with the vocabulary of the same model")
        if self.params.structured_outputs is not None and (self.forks or self.expansion):
            writes = f"strategy {self.strategy!r} writes its answer in several threads"
            hint = "answer sequentially, or decode the schema's fields as parts"
            raise RequestError(f"{writes}, and one schema holds for one", hint=hint)
        limits = self.params.limits(max_position)
        longest = max((len(start.prefix) for start in self.known), default=0)
        if max_position is not None and longest and not limits.has_room(len(self.prompt) + longest):
            raise ContextLengthError(len(self.prompt) + longest, max_position - 1)

    @property
    def known(self) -> tuple[Start, ...]:
        return () if self.expansion is None else self.expansion.known

    def limits(self, max_position: int | None) -> Limits:
        """Return the bounds of each response; ``max_position`` is the model's last position."""
        limits = self.params.limits(max_position)
        if max_position is None or self.join is not Join.RECOMPUTE:
            return limits
        # A sync gives all tokens consecutive positions: together they must fit the context.
        room = max(1, max_position + 1 - len(self.prompt))
        return replace(limits, max_tokens=min(limits.max_tokens, room))


@dataclass(frozen=True, slots=True)
class ThreadEvent:
    """An event of one thread of one sample."""

    sample: int
    thread: int


@dataclass(frozen=True, slots=True)
class Deferred(ThreadEvent):
    """A promise was made; its thread starts later, because enough others are decoding."""

    parent: int


@dataclass(frozen=True, slots=True)
class ThreadStarted(ThreadEvent):
    """A thread was forked and decodes from now on."""

    parent: int | None
    topic: str | None
    promised_tokens: int | None


@dataclass(frozen=True, slots=True)
class TextDelta(ThreadEvent):
    """A thread's text went on."""

    text: str


@dataclass(frozen=True, slots=True)
class ThoughtDelta(ThreadEvent):
    """Main's thought, which precedes its text, went on."""

    text: str


@dataclass(frozen=True, slots=True)
class ThreadEnded(ThreadEvent):
    """A thread decodes no more."""

    reason: FinishReason


@dataclass(frozen=True, slots=True)
class Synced(ThreadEvent):
    """A thread sees from now on what these decoded."""

    joined: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Traced:
    """The trace has more than before this pass; only if the request asks for it."""

    sample: int
    news: TraceNews


@dataclass(frozen=True, slots=True)
class Finished:
    """A response is complete."""

    sample: int
    answer: Answer


@dataclass(frozen=True, slots=True)
class Failed:
    """A request ended with an error that concerns no other; nothing more comes of it."""

    error: Exception


StreamEvent = (
    Deferred | ThreadStarted | ThoughtDelta | TextDelta | ThreadEnded | Synced | Traced | Finished
)


def unless_failed(event: StreamEvent | Failed) -> StreamEvent:
    if isinstance(event, Failed):
        raise event.error
    return event


class TokenLogprobs(NamedTuple):
    """A token's natural log-probability: the model's own, before penalty and temperature."""

    logprob: float
    top: tuple[tuple[int, float], ...]  # the likeliest ids with theirs, the likeliest first


@dataclass(frozen=True, slots=True, repr=False)
class Answer:
    """One response: the structured answer, and the trace of how it was decoded."""

    document: Document
    trace: Trace
    logprobs: Mapping[tuple[int, int], TokenLogprobs] = field(default_factory=dict)
    """By thread and index in it (``trace.tokens_of``); of sampled tokens, in the local engine."""
    reasoning: str | None = None  # the thought before the answer
    in_form: Mapping[tuple[int, int], TokenLogprobs] = field(default_factory=dict)
    """The same among the tokens that a form allows; beside each those that may end the same value,
    or all that a scored thread may begin with."""

    @property
    def text(self) -> str:
        return self.document.plain_text

    @property
    def program(self) -> str:
        return self.document.program

    @property
    def finish_reason(self) -> str:
        assert self.trace.finish_reason is not None
        return self.trace.finish_reason

    @property
    def usage(self) -> Mapping[str, int]:
        return self.trace.usage()

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        text = self.text if len(self.text) <= 40 else f"{self.text[:40]}…"
        return f"<Answer {text!r}: {self.trace!r}>"

    def _repr_html_(self) -> str | None:
        return self.trace._repr_html_()

    def to_dict(self) -> dict[str, Any]:
        trace = self.trace
        return {
            "model": trace.model, "engine": trace.engine, "strategy": trace.strategy,
            "kind": trace.kind.value, "finish_reason": self.finish_reason,
            **({} if self.reasoning is None else {"reasoning": self.reasoning}),
            "text": self.text, "program": self.program,
            "threads": [asdict(thread) for thread in trace.threads], "usage": trace.usage(),
            "critical_path_tokens": trace.critical_path, "forward_passes": trace.forward_passes,
            "parallelism": round(trace.parallelism, 4), "wall_s": round(trace.wall_s, 6),
        }  # fmt: skip
