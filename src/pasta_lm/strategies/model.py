"""The public face in Python: a prompt in, an answer or its events out.

>>> model = Pasta.from_pretrained("path/to/model")        # doctest: +SKIP
>>> answer = model.generate("Name three rivers.")         # doctest: +SKIP
>>> answer.text, answer.trace.parallelism                 # doctest: +SKIP
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pasta_lm.engines.request import Answer, Guess, Request, SamplingParams, StreamEvent
from pasta_lm.errors import MissingExtraError, ModelNotFoundError, UsageError
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.strategies import apar, pasta, sequential, speculation
from pasta_lm.strategies import skeleton_of_thought as sot
from pasta_lm.strategies.router import read_router
from pasta_lm.strategies.skeleton_prompts import FINETUNED, PROMPTED

if TYPE_CHECKING:
    from pasta_lm.engines.torch.engine import TorchEngine

Prompt = str | Sequence[Mapping[str, str]]
"""A text, or messages with 'role' and 'content'.

A model with a chat template takes a text as what the user says; one without goes on from it."""

BUILTIN, TWIN = "builtin", "builtin-sequential"
BUILTINS = (BUILTIN, TWIN)
GUESSING = (speculation.LOOKUP, speculation.DRAFT)
EXACT_SEQUENTIAL = (sequential.NAME, *GUESSING)
"""Strategies whose tokens are those of the sequential one."""
STRATEGIES = (pasta.NAME, sequential.NAME, apar.NAME, sot.NAME, sot.ROUTED, *GUESSING)
NOT_TAUGHT = "this model was not taught PASTA-LANG (it has no tag pieces): it answers sequentially"
NOT_TAUGHT_THIS = "this model was not taught {strategy}: it answers sequentially"


class Pasta:
    """A model that answers with any strategy."""

    def __init__(
        self, engine: TorchEngine, *, router: sot.Router | None = None, guess: Guess | None = None
    ) -> None:
        """Answer with this engine's model.

        Args:
            engine: Has the model.
            router: Which prompts get a skeleton under strategy 'sot-router'.
            guess: Guesses tokens under strategy 'draft-model'.
        """
        self.engine = engine
        self.router = router
        self.guess = guess
        self._said_not_taught: set[str] = set()

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path = "builtin",
        *,
        dtype: str | None = None,
        device: str | None = None,
        pool_tokens: int | None = None,
        draft: str | Path | None = None,
    ) -> Pasta:
        """Load a model folder, a hub id or a model that comes with the package.

        Args:
            source: A folder that ``save_pretrained`` wrote, a hub id, 'builtin' or
                'builtin-sequential', its twin without tags.
            dtype: 'float32', 'bfloat16' or 'float16'; None: float32 on a CPU, else as saved.
            device: 'cpu', 'cuda'; None: a GPU if there is one.
            pool_tokens: Cache entries for all requests together.
            draft: The smaller model that guesses under strategy 'draft-model'; the same names.

        Raises:
            MissingExtraError: torch or transformers is not installed.
            ModelNotFoundError: nothing is there.
            UnsupportedModelError: the engine would not be exact for this model.
        """
        source = builtin_folder(source) if source in BUILTINS else source
        draft = builtin_folder(draft) if draft in BUILTINS else draft
        try:
            from pasta_lm.engines.torch.drafting import DraftModel
            from pasta_lm.engines.torch.engine import DEFAULT_POOL_TOKENS, TorchEngine
            from pasta_lm.engines.torch.loading import load
        except ModuleNotFoundError as exc:
            if exc.name is None or exc.name.startswith("pasta_lm"):
                raise
            raise MissingExtraError(f"running a model (module {exc.name})", "torch") from exc
        loaded = load(source, dtype=dtype, device=device)
        guess = None
        if draft is not None:
            guess = DraftModel(load(draft, dtype=dtype, device=device), loaded)
        engine = TorchEngine(loaded, pool_tokens=pool_tokens or DEFAULT_POOL_TOKENS)
        return cls(engine, router=read_router(Path(source)), guess=guess)

    @property
    def has_tag_pieces(self) -> bool:
        """Tell whether the model has the tag pieces."""
        return self.engine.loaded.vocabulary.has_pieces

    def supports(self, strategy: str) -> bool:
        """Tell whether the model was taught a strategy, or needs to be taught nothing for it."""
        if strategy not in (pasta.NAME, apar.NAME):
            return True
        return self.has_tag_pieces and self.engine.loaded.trained_strategy == strategy

    def request(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        strategy: str = pasta.NAME,
        positions: PositionStrategy | str | None = None,
    ) -> Request:
        """Return what ``generate`` and ``stream`` ask of the engine.

        A model without tag pieces answers sequentially, and says so once on standard error.

        Raises:
            UsageError: an unknown strategy or position strategy; a strategy that needs a draft
                model or a router which is not there.
        """
        if strategy not in STRATEGIES:
            names = ", ".join(STRATEGIES)
            raise UsageError(f"unknown strategy {strategy!r}", hint=f"one of {names}")
        loaded = self.engine.loaded
        if isinstance(prompt, str) and loaded.vocabulary.has_chat_template:
            prompt = [{"role": "user", "content": prompt}]
        params = params or SamplingParams()
        if strategy in (sot.NAME, sot.ROUTED):
            _refuse_gaps(positions, strategy)
            return self._by_points(prompt, params, strategy)
        ids = loaded.vocabulary.encode_prompt(prompt)
        if strategy in EXACT_SEQUENTIAL:
            return self._sequential(ids, params, strategy)
        if not self.supports(strategy):
            self._say_not_taught(strategy)
            return sequential.request(ids, params)
        if strategy == apar.NAME:
            _refuse_gaps(positions, strategy)
            return apar.request(ids, params)
        return pasta.request(ids, params, _positions(positions, loaded.positions))

    def _by_points(self, prompt: Prompt, params: SamplingParams, strategy: str) -> Request:
        loaded = self.engine.loaded
        if strategy == sot.ROUTED and self.router is None:
            raise UsageError(
                f"strategy {strategy!r} needs a router, and {loaded.name} has none",
                hint="pasta train router DIR learns one",
            )
        wording = FINETUNED if loaded.trained_strategy == sot.NAME else PROMPTED
        router = self.router if strategy == sot.ROUTED else None
        asked = sot.request(prompt, loaded.vocabulary, params, wording=wording, router=router)
        return replace(asked, strategy=strategy)

    def _sequential(self, ids: Sequence[int], params: SamplingParams, strategy: str) -> Request:
        if strategy == sequential.NAME:
            return sequential.request(ids, params)
        guess = self.guess if strategy == speculation.DRAFT else speculation.PromptLookup()
        if guess is None:
            raise UsageError(f"strategy {strategy!r} needs a draft model", hint="--draft names one")
        return speculation.request(ids, params, guess, strategy)

    def _say_not_taught(self, strategy: str) -> None:
        said = NOT_TAUGHT_THIS.format(strategy=strategy) if self.has_tag_pieces else NOT_TAUGHT
        if said not in self._said_not_taught:
            print(f"pasta: {said}", file=sys.stderr)  # noqa: T201
            self._said_not_taught.add(said)

    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        strategy: str = pasta.NAME,
        positions: PositionStrategy | str | None = None,
    ) -> Answer:
        """Answer a prompt; with ``params.n`` above 1 return its first sample (see ``samples``)."""
        return self.samples(prompt, params, strategy=strategy, positions=positions)[0]

    def samples(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        strategy: str = pasta.NAME,
        positions: PositionStrategy | str | None = None,
    ) -> list[Answer]:
        """Answer a prompt ``params.n`` times; its entries are computed once."""
        request = self.request(prompt, params, strategy=strategy, positions=positions)
        return self.engine.generate([request])[0]

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        strategy: str = pasta.NAME,
        positions: PositionStrategy | str | None = None,
    ) -> Iterator[StreamEvent]:
        """Answer a prompt and yield what happens as it happens."""
        request = self.request(prompt, params, strategy=strategy, positions=positions)
        return self.engine.stream(request)


def builtin_folder(name: str | Path) -> Path:
    """Return the folder of a model that comes with the package.

    Raises:
        ModelNotFoundError: the installation lacks it.
    """
    folder = Path(__file__).parents[1] / "models" / name
    if not (folder / "model.safetensors").is_file():
        raise ModelNotFoundError(
            f"the model {name} is missing in this installation: {folder}",
            hint="install pasta-lm again, or name another model with --model",
        )
    return folder


def baseline_of(name: str) -> str:
    """Return whose sequential answers a model is held against: its twin's, or its own."""
    return TWIN if name == BUILTIN else name


def _positions(given: PositionStrategy | str | None, default: PositionStrategy) -> PositionStrategy:
    if given is None:
        return default
    choices = [s.value for s in PositionStrategy if s is not PositionStrategy.ORACLE]
    if given not in choices:
        reason = " (replay and training only)" if given == "oracle" else ""
        raise UsageError(
            f"positions {given!r} cannot be used here{reason}", hint=f"one of {', '.join(choices)}"
        )
    return PositionStrategy(given)


def _refuse_gaps(given: PositionStrategy | str | None, strategy: str) -> None:
    if given not in (None, apar.POSITIONS):
        raise UsageError(
            f"strategy {strategy!r} leaves no gaps, so positions {str(given)!r} mean nothing to it",
            hint="leave them out",
        )
