"""``pasta chat``: a conversation in the terminal; the threads are shown while they decode."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated

import typer

from pasta_lm.cli.conversation import Dialogue
from pasta_lm.cli.flags import (
    DECODING,
    Device,
    Draft,
    Dtype,
    MaxTokens,
    Model,
    Seed,
    Temperature,
    option,
    require_draft,
    require_one_of,
)
from pasta_lm.cli.terminal import can_animate, console, harmless, say, status
from pasta_lm.cli.thread_view import ShowEvents, live_threads, print_picture, summary
from pasta_lm.engines.request import Answer, SamplingParams
from pasta_lm.errors import InputError, PastaError, UsageError
from pasta_lm.models.shipped import BUILTIN
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


def chat(
    model: Model = None,
    dtype: Dtype = None,
    device: Device = None,
    draft: Draft = None,
    strategy: Annotated[
        str,
        option(
            "--strategy",
            metavar="NAME",
            help="The first strategy; /strategy changes it.",
            panel=DECODING,
        ),
    ] = "pasta",
    max_tokens: MaxTokens = 1024,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    system: Annotated[
        str | None, option("--system", metavar="TEXT", help="The system message.")
    ] = None,
) -> None:
    """Talk with a model; /help lists the commands.

    In a terminal the threads are shown while they decode. Standard input that is piped is read as
    one question a line.
    """
    require_one_of("--strategy", strategy, STRATEGIES)
    if strategy in DRAFTED:
        require_draft(draft, strategy)
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed)
    with status(f"loading {model or BUILTIN}"):
        loaded = Pasta.from_pretrained(
            model or BUILTIN,
            dtype=dtype,
            device=device,
            draft=draft,
            pool_tokens=MAX_CONTEXT + 2 * max_tokens,  # a sync may feed an answer again
        )
    conversation = Dialogue(
        loaded,
        params,
        strategy=strategy,
        system=system,
        max_prompt=_max_prompt(loaded.engine.max_prompt_tokens, max_tokens),
    )
    if exit_code := talk(conversation):
        raise typer.Exit(exit_code)


def _max_prompt(context: int | None, max_tokens: int) -> int:
    """Return the longest prompt, in tokens, that leaves room for an answer."""
    context = min(context or MAX_CONTEXT, MAX_CONTEXT)
    return context - min(max_tokens, context // MAX_ANSWER_SHARE)


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
    """Carry out a command, or answer a question."""
    if not line.strip():
        return
    if not line.startswith("/"):
        with _shown() as show:
            answer = conversation.ask(line.strip(), show)
        _print(conversation, answer)
        return
    command, *names = line.split()
    match command, names:
        case "/help", []:
            typer.echo(HELP, err=True)
        case "/new", []:
            conversation.turns.clear()
            say("a new conversation")
        case "/strategy", []:
            say(f"the strategy is {conversation.strategy}")
        case "/strategy", [name]:
            conversation.change_strategy(name)
            say(f"the strategy is now {name}")
        case "/regenerate", []:
            if conversation.params.temperature == 0:
                say("at temperature 0 the same strategy writes the same answer (--temperature)")
            with _shown() as show:
                answer = conversation.regenerate(show)
            _print(conversation, answer)
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
    """Yield the lines of standard input, an error for each that is not UTF-8."""
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            yield line.decode("utf-8-sig").rstrip("\r\n")
        except UnicodeDecodeError as error:
            yield InputError(f"line {number} is not UTF-8: byte {error.start + 1} cannot be read")


@contextmanager
def _shown() -> Iterator[ShowEvents]:
    """Show the threads while they decode, where there is a terminal."""
    if not can_animate():
        yield lambda events: None
        return
    with live_threads(console(sys.stderr)) as show:
        yield show


def _print(conversation: Dialogue, answer: Answer | None) -> None:
    text = conversation.turns[-1].answer
    typer.echo(harmless(text) if sys.stdout.isatty() else text)
    if answer is None:
        say("stopped; what was written is kept")
        return
    print_picture(answer.trace)
    say(summary(answer.trace))
