"""``pasta chat``: a conversation in the terminal; the threads are shown while they decode."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import Annotated, cast

import typer

from pasta_lm.cli import flags
from pasta_lm.cli.flags import option, require_draft, require_one_of
from pasta_lm.cli.terminal import print_answer, say, status
from pasta_lm.cli.thread_view import live_threads, print_picture, summary
from pasta_lm.engines.reading_order import ReadingOrder
from pasta_lm.engines.request import Answer, Finished, Request, SamplingParams, StreamEvent
from pasta_lm.errors import InputError, PastaError, RequestError, UsageError
from pasta_lm.models.names import BUILTIN
from pasta_lm.strategies.model import Pasta
from pasta_lm.strategies.requests import DRAFTED, STRATEGIES

HELP = """\
/new             forget the conversation
/regenerate      answer the last question again, with the next seed
/strategy NAME   change the strategy; without a name, print it
/help            show this list
/quit            leave (so does Ctrl-D)
Ctrl-C stops an answer and keeps what was written. Every other line is a question."""
COMMANDS = ("/new", "/regenerate", "/strategy", "/help", "/quit")
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

    def ask(self, question: str) -> Answer | None:
        """Answer a question and return the answer; None if Ctrl-C stopped it."""
        if self.messages and not self.reply:
            self.messages.pop()  # no question stays unanswered
        self.messages.append({"role": "user", "content": question})
        return self._answer()

    def regenerate(self) -> Answer | None:
        """Answer the last question again, with the next seed."""
        if not self.messages:
            raise UsageError("there is no question yet")
        if self.reply:
            self.messages.pop()
        self.params = replace(self.params, seed=(self.params.seed or 0) + 1)
        return self._answer()

    @property
    def reply(self) -> str:
        """Return the answer to the last question; empty while there is none."""
        last = self.messages[-1]
        return last["content"] if last["role"] == "assistant" else ""

    def _answer(self) -> Answer | None:
        last, request = None, self._request()
        order = ReadingOrder(is_held=request.expansion is not None)
        stream = cast("Generator[StreamEvent, None, None]", self.model.engine.stream(request))
        try:
            with live_threads() as show, closing(stream) as events:  # frees a stopped one's cache
                for event in events:
                    order.feed([event])
                    show([event])
                    last = event
        except KeyboardInterrupt:
            text, answer = order.text_so_far(), None
        else:
            assert isinstance(last, Finished)
            text, answer = last.answer.text, last.answer
        if text:
            self.messages.append({"role": "assistant", "content": text})
        return answer

    def _request(self) -> Request:
        """Return the request of all messages, without the oldest turns if they are too many."""
        num_before = len(self.messages)
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        while True:
            messages = [*system, *self.messages]
            request = self.model.request(messages, self.params, strategy=self.strategy)
            num_tokens = len(request.prompt)
            if self.max_prompt is None or num_tokens <= self.max_prompt:
                break
            if len(self.messages) == 1:
                raise RequestError(
                    f"the question has {num_tokens} tokens, and the model's context has "
                    f"room for {self.max_prompt} beside an answer",
                    hint="ask a shorter question, or start with a smaller --max-tokens",
                )
            del self.messages[:2]
        if num_dropped := (num_before - len(self.messages)) // 2:
            turns = "turn" if num_dropped == 1 else f"{num_dropped} turns"
            say(
                f"the conversation is longer than the model's context: its oldest {turns} "
                f"dropped, {len(self.messages) // 2} kept"
            )
        return request


def chat(
    model: flags.Model = None,
    dtype: flags.Dtype = None,
    device: flags.Device = None,
    draft: flags.Draft = None,
    strategy: Annotated[
        str, option("--strategy NAME", "The first strategy; /strategy changes it.")
    ] = "pasta",
    max_tokens: flags.MaxTokens = 1024,
    temperature: flags.Temperature = 0.0,
    seed: flags.Seed = 0,
    system: Annotated[str | None, option("--system TEXT", "The system message.")] = None,
) -> None:
    """Talk with a model; /help lists the commands.

    In a terminal the threads are shown while they decode. Standard input that is piped is read as
    one question a line.
    """
    require_one_of("--strategy", strategy, STRATEGIES)
    if strategy in DRAFTED:
        require_draft(draft, strategy)
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed)
    pool_tokens = MAX_CONTEXT + 2 * max_tokens  # a sync may feed an answer again
    with status(f"loading {model or BUILTIN}"):
        loaded = Pasta.from_pretrained(
            model or BUILTIN, dtype=dtype, device=device, draft=draft, pool_tokens=pool_tokens
        )
    context = min(loaded.engine.max_prompt_tokens or MAX_CONTEXT, MAX_CONTEXT)
    max_prompt = context - min(max_tokens, context // MAX_ANSWER_SHARE)
    if exit_code := talk(Dialogue(loaded, params, strategy, system, max_prompt)):
        raise typer.Exit(exit_code)


def talk(conversation: Dialogue) -> int:
    """Answer the lines of standard input until its end or /quit; return the exit code.

    An error is printed and the conversation goes on. Piped input returns the code of its last
    error, a terminal 0.
    """
    is_terminal = sys.stdin.isatty()
    exit_code = 0
    if is_terminal:
        say(f"strategy {conversation.strategy}; /help lists the commands, /quit leaves")
    for line in _typed() if is_terminal else _piped():
        try:
            if isinstance(line, InputError):
                raise line
            if line.startswith("/") and line.split() == ["/quit"]:
                break
            _respond(conversation, line)
        except PastaError as error:
            typer.echo(f"pasta: {error}", err=True)
            exit_code = 0 if is_terminal else error.exit_code
    return exit_code


def _respond(conversation: Dialogue, line: str) -> None:
    match line.split() if line.startswith("/") else ["", *line.split()]:
        case [""]:
            pass
        case ["", *_]:
            _print(conversation, conversation.ask(line.strip()))
        case ["/help"]:
            typer.echo(HELP, err=True)
        case ["/new"]:
            conversation.messages.clear()
            say("a new conversation")
        case ["/strategy"]:
            say(f"the strategy is {conversation.strategy}")
        case ["/strategy", name]:
            conversation.model.request("?", conversation.params, strategy=name)  # or refuse it
            conversation.strategy = name
            say(f"the strategy is now {name}")
        case ["/regenerate"]:
            if conversation.params.temperature == 0:
                say("at temperature 0 the same strategy writes the same answer (--temperature)")
            _print(conversation, conversation.regenerate())
        case _:
            hint = f"{', '.join(COMMANDS)}; begin a question with a space to ask it as it is"
            raise UsageError(f"no such command: {line.strip()}", hint=hint)


def _typed() -> Iterator[str]:
    """Yield the lines that a person types; Ctrl-C gives a new line up, Ctrl-D ends them."""
    with suppress(ModuleNotFoundError):
        import readline  # noqa: F401  # line editing and history in ``input``
    while True:
        try:
            yield input("> ")
        except KeyboardInterrupt:
            typer.echo(err=True)
            say("/quit leaves")
        except EOFError:
            typer.echo(err=True)
            return


def _piped() -> Iterator[str | InputError]:
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            yield line.decode("utf-8-sig").rstrip("\r\n")
        except UnicodeDecodeError as error:
            yield InputError(f"line {number} is not UTF-8: byte {error.start + 1} cannot be read")


def _print(conversation: Dialogue, answer: Answer | None) -> None:
    print_answer(conversation.reply)
    if answer is None:
        say("stopped; what was written is kept")
    else:
        print_picture(answer.trace)
        say(summary(answer.trace))
