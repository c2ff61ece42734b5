"""``pasta chat``: a conversation in the terminal; the threads are shown while they decode."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Annotated, cast

import typer

from pasta_lm.cli import flags
from pasta_lm.cli.flags import option, require_one_of
from pasta_lm.cli.run import checked, load_model
from pasta_lm.cli.terminal import decoded, print_answer, print_thought, say
from pasta_lm.cli.thread_view import live_threads, print_figures
from pasta_lm.engines.reading_order import ReadingOrder
from pasta_lm.engines.request import Finished, Request, SamplingParams, StreamEvent
from pasta_lm.errors import PastaError, RequestError, UsageError
from pasta_lm.models.names import BUILTIN
from pasta_lm.strategies.model import Pasta
from pasta_lm.strategies.requests import STRATEGIES

HELP = """\
/new             forget the conversation
/regenerate      answer the last question again, with the next seed
/continue        write on at the end of the last answer, which a limit or Ctrl-C has cut
/set NAME VALUE  change temperature, top_p, max_tokens, fork_bias, seed or strategy; alone, print
                 them
/help            show this list
/quit            leave (so does Ctrl-D)
Ctrl-C stops an answer and keeps what was written. Every other line is a question."""
COMMANDS = ("/new", "/regenerate", "/continue", "/set", "/help", "/quit")
SETTINGS: dict[str, type[int] | type[float]] = {
    "temperature": float, "top_p": float, "max_tokens": int, "fork_bias": float, "seed": int
}  # fmt: skip
MAX_CONTEXT = 16_384  # tokens; longer contexts are not filled, which saves memory
MAX_ANSWER_SHARE = 4  # at most a quarter of the context is kept free for the answer


@dataclass(slots=True)
class Dialogue:
    """The messages so far, and how the next question is answered."""

    model: Pasta
    params: SamplingParams
    strategy: str = "pasta"
    system: str | None = None
    max_prompt: int | None = None  # tokens; longer conversations lose their oldest turns
    messages: list[dict[str, str]] = field(default_factory=list)
    """Questions and answers in turn; answers are plain text, without tags."""
    name: str = "pasta"  # the model's
    think: bool | None = None
    most_tokens: int | None = None  # an answer's, for which the engine has room
    cuts_thought: bool = False  # a limit cut the last answer inside its thought

    def respond(self, line: str) -> None:
        if not line.startswith("/"):
            if line.strip():
                self._ask(line.strip())
            return
        match line.split():
            case ["/help"]:
                typer.echo(HELP, err=True)
            case ["/new"]:
                self.messages.clear()
                say("a new conversation")
            case ["/set"]:
                values = asdict(self.params) | {"strategy": self.strategy}
                say(", ".join(f"{name} {values[name]}" for name in (*SETTINGS, "strategy")))
            case ["/set", "strategy", name]:
                self.model.request("?", self.params, strategy=name)  # or refuse it
                self.strategy = name
                say(f"strategy is now {name}")
            case ["/set", name, value] if name in SETTINGS:
                self._set(name, value)
            case ["/regenerate"]:
                self._regenerate()
            case ["/continue"]:
                self._answer(continues=True)
            case _:
                hint = f"{', '.join(COMMANDS)}; begin a question with a space to ask it as it is"
                raise UsageError(f"no such command: {line.strip()}", hint=hint)

    def _ask(self, question: str) -> None:
        if self.messages and self.messages[-1]["role"] == "user":
            self.messages.pop()  # no question stays unanswered
        self.messages.append({"role": "user", "content": question})
        self._answer()

    def _regenerate(self) -> None:
        if not self.messages:
            raise UsageError("there is no question yet")
        if self.params.temperature == 0:
            say("at temperature 0 the same strategy writes the same answer (--temperature)")
        if self.messages[-1]["role"] == "assistant":
            self.messages.pop()
        self.params = replace(self.params, seed=(self.params.seed or 0) + 1)
        self._answer()

    def _set(self, name: str, value: str) -> None:
        try:
            number = SETTINGS[name](value)
        except ValueError as exc:
            raise UsageError(f"{name} cannot be {value!r}", hint=f"/set {name} NUMBER") from exc
        if name == "max_tokens" and number > (self.most_tokens or number):
            problem = f"max_tokens is {value}, and there is room for {self.most_tokens}"
            raise UsageError(problem, hint=f"start again with --max-tokens {value}")
        self.params = SamplingParams(**(asdict(self.params) | {name: number}))
        say(f"{name} is now {number}")

    def _answer(self, *, continues: bool = False) -> None:
        """Answer the last question; Ctrl-C stops the answer, and its text so far is kept."""
        if continues and (not self.messages or self.messages[-1]["role"] != "assistant"):
            if self.messages and self.cuts_thought:
                problem = "a limit cut the last answer in its thought, which is not kept"
                raise UsageError(problem, hint="/set max_tokens NUMBER, then /regenerate")
            raise UsageError("there is no answer to be continued yet")
        last, request = None, self._request(continues=continues)
        before = self.messages.pop()["content"] if continues else ""
        order = ReadingOrder(is_held=request.expansion is not None)
        stream = cast("Generator[StreamEvent, None, None]", self.model.engine.stream(request))
        # Closing frees the cache of a stopped answer.
        with suppress(KeyboardInterrupt), live_threads() as show, closing(stream) as events:
            for event in events:
                order.feed([event])
                show([event])
                last = event
        text = last.answer.text if isinstance(last, Finished) else order.text_so_far()
        if before or text:
            self.messages.append({"role": "assistant", "content": before + text})
        self.cuts_thought = not text and isinstance(last, Finished) and bool(last.answer.reasoning)
        if isinstance(last, Finished):
            print_thought(last.answer.reasoning)
        print_answer(text)
        if isinstance(last, Finished):
            print_figures(last.answer.trace)
        else:
            say("stopped; what was written is kept")

    def _request(self, *, continues: bool) -> Request:
        """Return the request of all messages, without the oldest turns if they are too many."""
        num_before = len(self.messages)
        make = partial(self.model.request, continues=continues, think=self.think)
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        while True:
            messages = [*system, *self.messages]
            request = make(messages, self.params, strategy=self.strategy)
            num_tokens = len(request.prompt)
            if num_tokens <= (self.max_prompt or num_tokens):
                break
            if len(self.messages) == 1 + continues:
                room = f"the model's context has room for {self.max_prompt} beside an answer"
                hint = "ask a shorter question, or start with a smaller --max-tokens"
                raise RequestError(f"the question has {num_tokens} tokens, and {room}", hint=hint)
            del self.messages[:2]
        if num_dropped := (num_before - len(self.messages)) // 2:
            turns = "turn" if num_dropped == 1 else f"{num_dropped} turns"
            change = f"its oldest {turns} dropped, {len(self.messages) // 2} kept"
            say(f"the conversation is longer than the model's context: {change}")
        return request


def chat(
    model: flags.Model = None, dtype: flags.Dtype = None, device: flags.Device = None,
    threads: flags.Threads = None,
    strategy: Annotated[
        str, option("--strategy NAME", "/set strategy changes it later.")
    ] = "pasta",
    max_tokens: flags.MaxTokens = 1024, temperature: flags.Temperature = None,
    fork_bias: flags.ForkBias = None, think: flags.Think = None, seed: flags.Seed = 0,
    system: Annotated[str | None, option("--system TEXT", "The system message.")] = None,
) -> None:  # fmt: skip
    """Talk with a model; /help lists the commands.

    In a terminal the threads are shown while they decode. Standard input that is piped is read as
    one question a line.
    """
    require_one_of("--strategy", strategy, STRATEGIES)
    settings = checked(
        max_tokens=max_tokens, temperature=temperature, fork_bias=fork_bias, seed=seed
    )
    pool_tokens = MAX_CONTEXT + 2 * max_tokens  # a sync may feed an answer again
    loaded = load_model(model, dtype=dtype, device=device, pool_tokens=pool_tokens)
    context = min(loaded.engine.max_prompt_tokens or MAX_CONTEXT, MAX_CONTEXT)
    max_prompt = context - min(max_tokens, context // MAX_ANSWER_SHARE)
    params, name = loaded.sampling_params(**settings), model or BUILTIN
    dialogue = Dialogue(loaded, params, strategy, system, max_prompt, name=name, think=think)
    dialogue.most_tokens = (pool_tokens - max_prompt) // 2
    if exit_code := talk(dialogue):
        raise typer.Exit(exit_code)


def talk(conversation: Dialogue) -> int:
    """Answer the lines of standard input until its end or /quit; return the exit code.

    An error is printed and the conversation goes on. Piped input returns the code of its last
    error, a terminal 0.
    """
    is_terminal, exit_code = sys.stdin.isatty(), 0
    if is_terminal:
        how = f"{conversation.name}, strategy {conversation.strategy}"
        say(f"{how}; /help lists the commands, /quit leaves")
    for number, line in enumerate(_typed() if is_terminal else sys.stdin.buffer, start=1):
        try:
            text = decoded(line, f"line {number}").rstrip("\r\n")
            if text.startswith("/") and text.split() == ["/quit"]:
                break
            conversation.respond(text)
        except PastaError as error:
            typer.echo(f"pasta: {error}", err=True)
            exit_code = 0 if is_terminal else error.exit_code
    return exit_code


def _typed() -> Iterator[bytes]:
    """Yield the lines that a person types; Ctrl-C gives a new line up, Ctrl-D ends them."""
    with suppress(ModuleNotFoundError):
        import readline  # noqa: F401  # line editing and history in ``input``
    while True:
        try:
            yield input("> ").encode("utf-8", "surrogateescape")
        except KeyboardInterrupt:
            typer.echo(err=True)
            say("/quit leaves")
        except EOFError:
            typer.echo(err=True)
            return
