"""``pasta chat``: a conversation in the terminal; the threads are shown while they decode."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from pasta_lm.cli.flags import Device, Draft, Dtype, Model, option, require_draft, require_one_of
from pasta_lm.cli.terminal import say
from pasta_lm.errors import InputError, PastaError, UsageError

if TYPE_CHECKING:
    from pasta_lm.cli.conversation import Conversation
    from pasta_lm.cli.thread_view import Show
    from pasta_lm.engines.request import Answer
    from pasta_lm.interpreter.trace import Trace
    from pasta_lm.strategies.model import Pasta

HELP = """\
/new             forget the conversation
/regenerate      answer the last question again, with the next seed
/strategy NAME   change the strategy; without a name, say which it is
/help            show this list
/quit            leave (so does Ctrl-D)
Ctrl-C stops an answer and keeps what was written. Every other line is a question."""
COMMANDS = ("/new", "/regenerate", "/strategy", "/help", "/quit")
MAX_ANSWER_SHARE = 4  # at most a quarter of the context is kept free for the answer


def chat(
    model: Model = None,
    strategy: Annotated[
        str, option("--strategy", metavar="NAME", help="The first strategy; /strategy changes it.")
    ] = "pasta",
    draft: Draft = None,
    system: Annotated[
        str | None, option("--system", metavar="TEXT", help="The system message.")
    ] = None,
    max_tokens: Annotated[
        int, option("--max-tokens", metavar="N", help="Maximum number of tokens of one answer.")
    ] = 1024,
    temperature: Annotated[
        float, option("--temperature", metavar="T", help="0 is greedy decoding.")
    ] = 0.0,
    seed: Annotated[int, option("--seed", metavar="N", help="Same seed, same answers.")] = 0,
    dtype: Dtype = None,
    device: Device = None,
) -> None:
    """Talk with a model; /help lists the commands.

    In a terminal the threads are shown while they decode. Standard input that is piped is read as
    one question a line.
    """
    from pasta_lm.cli.conversation import Conversation
    from pasta_lm.cli.terminal import silence_libraries, status
    from pasta_lm.engines.request import SamplingParams
    from pasta_lm.models.shipped import BUILTIN
    from pasta_lm.strategies.model import DRAFTED, STRATEGIES, Pasta

    require_one_of("--strategy", strategy, STRATEGIES)
    if strategy in DRAFTED:
        require_draft(draft, [strategy])
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed)
    silence_libraries()
    with status("loading the model"):
        loaded = Pasta.from_pretrained(model or BUILTIN, dtype=dtype, device=device, draft=draft)
    vocabulary = loaded.engine.loaded.vocabulary
    conversation = Conversation(
        loaded,
        params,
        count_tokens=lambda text: len(vocabulary.encode_text(text)),
        strategy=strategy,
        system=system,
        max_prompt=_max_prompt(loaded, max_tokens),
    )
    if exit_code := talk(conversation):
        raise typer.Exit(exit_code)


def _max_prompt(model: Pasta, max_tokens: int) -> int:
    """Return the longest prompt, in tokens, that leaves room for an answer."""
    largest = model.engine.pool.num_slots - max_tokens
    last = model.engine.loaded.max_position
    if last is None:
        return largest
    context = last + 1
    return min(largest, context - min(max_tokens, context // MAX_ANSWER_SHARE))


def talk(conversation: Conversation) -> int:
    """Answer the lines of standard input until its end or /quit; return the exit code.

    An error is printed and the conversation goes on. Piped input returns the code of its last
    error, a terminal 0.
    """
    is_terminal = sys.stdin.isatty()
    exit_code = 0
    if is_terminal:
        say(f"{conversation.strategy}; /help lists the commands, /quit leaves")
    lines = _typed() if is_terminal else _piped()
    for line in lines:
        try:
            if isinstance(line, InputError):
                raise line
            if line.startswith("/") and line.split() == ["/quit"]:
                break
            _respond(conversation, line)
        except PastaError as error:
            say(str(error))
            exit_code = 0 if is_terminal else error.exit_code
    return exit_code


def _respond(conversation: Conversation, line: str) -> None:
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
            yield line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            yield InputError(f"line {number} is not UTF-8: byte {error.start + 1} cannot be read")


@contextmanager
def _shown() -> Iterator[Show]:
    """Show the threads while they decode, where there is a terminal."""
    from pasta_lm.cli.terminal import can_animate, console
    from pasta_lm.cli.thread_view import live_threads

    if not can_animate():
        yield lambda events: None
        return
    with live_threads(console(sys.stderr)) as show:
        yield show


def _print(conversation: Conversation, answer: Answer | None) -> None:
    from pasta_lm.cli.terminal import can_animate, console, glyphs, harmless
    from pasta_lm.cli.thread_view import picture

    text = conversation.turns[-1].answer
    typer.echo(harmless(text) if sys.stdout.isatty() else text)
    if answer is None:
        say("stopped; what was written is kept")
        return
    err = console(sys.stderr)
    if can_animate() and len(answer.trace.threads) > 1:
        err.print()
        err.print(picture(answer.trace, err.width, glyphs(err)))
    say(figures(answer.trace, conversation.count_tokens(answer.text)))


def figures(trace: Trace, num_sequential: int) -> str:
    """Return one line: speedup, parallelism, critical path and tokens of the answer per second.

    Args:
        trace: How the answer was decoded.
        num_sequential: Tokens of the answer's text alone, the steps of sequential decoding.
    """
    from pasta_lm.interpreter.limits import FinishReason
    from pasta_lm.interpreter.trace import Kind

    rate = f"{trace.tokens_per_s:.1f} tokens/s" if trace.tokens_per_s else ""
    parts = [
        f"theoretical speedup {trace.speedup_over_text(num_sequential):.2f}",
        f"parallelism {trace.parallelism:.2f}",
        f"critical path {trace.critical_path} of {trace.num_tokens} tokens",
        "no wall clock (simulated)" if trace.kind is Kind.SIMULATED else rate,
        "cut short by a limit" if trace.finish_reason == FinishReason.LENGTH else "",
    ]
    return ", ".join(part for part in parts if part)
