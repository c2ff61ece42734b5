"""The public face in Python: a prompt in, an answer or its events out.

>>> model = Pasta.from_pretrained("path/to/model")        # doctest: +SKIP
>>> answer = model.generate("Name three rivers.")         # doctest: +SKIP
>>> answer.text, answer.trace.parallelism                 # doctest: +SKIP
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pasta_lm.engines.request import Answer, Request, SamplingParams, StreamEvent
from pasta_lm.errors import MissingExtraError, ModelNotFoundError, UsageError
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.strategies import pasta, sequential

if TYPE_CHECKING:
    from pasta_lm.engines.torch.engine import TorchEngine

Prompt = str | Sequence[Mapping[str, str]]
"""A text, or messages with 'role' and 'content'.

A model with a chat template takes a text as what the user says; one without goes on from it."""

BUILTIN, TWIN = "builtin", "builtin-sequential"
BUILTINS = (BUILTIN, TWIN)
STRATEGIES = (pasta.NAME, sequential.NAME)
NOT_TAUGHT = "this model was not taught PASTA-LANG (it has no tag pieces): it answers sequentially"


class Pasta:
    """A model that answers with any strategy."""

    def __init__(self, engine: TorchEngine) -> None:
        """Answer with this engine's model."""
        self.engine = engine
        self._has_said_not_taught = False

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path = "builtin",
        *,
        dtype: str | None = None,
        device: str | None = None,
        pool_tokens: int | None = None,
    ) -> Pasta:
        """Load a model folder, a hub id or a model that comes with the package.

        Args:
            source: A folder that ``save_pretrained`` wrote, a hub id, 'builtin' or
                'builtin-sequential', its twin without tags.
            dtype: 'float32', 'bfloat16' or 'float16'; None: float32 on a CPU, else as saved.
            device: 'cpu', 'cuda'; None: a GPU if there is one.
            pool_tokens: Cache entries for all requests together.

        Raises:
            MissingExtraError: torch or transformers is not installed.
            ModelNotFoundError: nothing is there.
            UnsupportedModelError: the engine would not be exact for this model.
        """
        source = builtin_folder(source) if source in BUILTINS else source
        try:
            from pasta_lm.engines.torch.engine import DEFAULT_POOL_TOKENS, TorchEngine
            from pasta_lm.engines.torch.loading import load
        except ModuleNotFoundError as exc:
            if exc.name is None or exc.name.startswith("pasta_lm"):
                raise
            raise MissingExtraError(f"running a model (module {exc.name})", "torch") from exc
        loaded = load(source, dtype=dtype, device=device)
        return cls(TorchEngine(loaded, pool_tokens=pool_tokens or DEFAULT_POOL_TOKENS))

    @property
    def is_taught(self) -> bool:
        """Tell whether the model has the tag pieces."""
        return self.engine.loaded.vocabulary.has_pieces

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
            UsageError: an unknown strategy or position strategy.
        """
        loaded = self.engine.loaded
        if isinstance(prompt, str) and loaded.vocabulary.has_chat_template:
            prompt = [{"role": "user", "content": prompt}]
        ids = loaded.vocabulary.encode_prompt(prompt)
        params = params or SamplingParams()
        if strategy not in STRATEGIES:
            names = ", ".join(STRATEGIES)
            raise UsageError(f"unknown strategy {strategy!r}", hint=f"one of {names}")
        if strategy == pasta.NAME and not self.is_taught:
            self._say_not_taught()
        if strategy == sequential.NAME or not self.is_taught:
            return sequential.request(ids, params)
        return pasta.request(ids, params, _positions(positions, loaded.positions))

    def _say_not_taught(self) -> None:
        if not self._has_said_not_taught:
            print(f"pasta: {NOT_TAUGHT}", file=sys.stderr)  # noqa: T201
            self._has_said_not_taught = True

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
