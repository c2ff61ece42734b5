"""All errors of the project, as a tree of classes.

::

    PastaError                     exit code 1: the run failed
    ├── UsageError                 exit code 2: a flag, setting or environment variable is wrong
    │   ├── MissingExtraError          an optional dependency is not installed
    │   ├── ModelNotFoundError         no model at that place, or none named
    │   └── EndpointError              a remote server refuses the key, the model or the address
    ├── InputError                 exit code 3: a file, a line or a prompt is invalid
    │   ├── MissingFileError           there is no file at a path
    │   ├── PastaSyntaxError           text that breaks the grammar of PASTA-LANG
    │   └── RequestError               a request that can never be served (too long, too large)
    │       └── InvalidAnswerError         an answer is no instance of a class; it has the data
    ├── ModelError                 exit code 1: a model cannot be used as it is
    │   ├── UnsupportedModelError      the self-test or the configuration says it would not be exact
    │   └── VocabularyError            tag pieces are missing, or the tokenizer loses text
    ├── DeviceMemoryError          exit code 1: a GPU's memory is full
    └── RemoteError                exit code 1: a remote server fails, or its reply is invalid
        └── BrokenAnswerError          it failed inside an answer; ``text`` is the text so far

Each message says what is wrong and where; ``hint`` says what to do next. The command line prints
both, in at most four lines, and exits with ``exit_code``.
"""

from __future__ import annotations

import json
from importlib import metadata


class PastaError(Exception):
    """The base class of all errors of this project."""

    exit_code: int = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n    hint: {self.hint}"


class UsageError(PastaError):
    """Report a flag, setting or environment variable that cannot be used."""

    exit_code = 2


class MissingExtraError(UsageError):
    """Report an optional dependency that is not installed, with the command that installs it."""

    def __init__(self, feature: str, extra: str) -> None:
        reason = f"{feature} needs the extra '{extra}', which is not installed"
        super().__init__(reason, hint=install_command(extra))


def install_command(extra: str) -> str:
    try:
        origin = metadata.distribution("pasta-lm").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return f"in a clone of the repository: pip install '.[{extra}]'"
    if origin is None:
        return f"pip install 'pasta-lm[{extra}]'"
    source = json.loads(origin)
    kind = f"{source['vcs_info']['vcs']}+" if "vcs_info" in source else ""
    return f"pip install 'pasta-lm[{extra}] @ {kind}{source['url']}'"


class ModelNotFoundError(UsageError):
    """Report that no model was named, or that none is where the name points."""


class EndpointError(UsageError):
    """Report a remote server that refuses every request: its key, model or address is wrong."""


class InputError(PastaError):
    """Report that a file, a line or a prompt is invalid."""

    exit_code = 3


class MissingFileError(InputError):
    """Report that there is no file at a path."""

    def __init__(self, path: object) -> None:
        hint = "check the path; a relative path starts at the current folder"
        super().__init__(f"no such file: {path}", hint=hint)


class PastaSyntaxError(InputError):
    """Report text that breaks the grammar of PASTA-LANG."""


class RequestError(InputError):
    """Report a request that this model or this pool can never serve."""


class ContextLengthError(RequestError):
    """Report a prompt that is longer than the model's context."""

    def __init__(self, num_tokens: int, context: int, *, is_partial: bool = False) -> None:
        # The words are OpenAI's: clients look for them.
        message = f"This model's maximum context length is {context} tokens; the prompt has"
        num = f"more than {num_tokens}" if is_partial else num_tokens
        super().__init__(f"{message} {num}", hint="shorten the prompt")


class InvalidAnswerError(RequestError):
    """Report an answer that is no instance of its class, with what was decoded."""

    def __init__(self, message: str, data: object, text: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.data, self.text = data, text


class ModelError(PastaError):
    """Report a model that cannot be used as it is."""


class UnsupportedModelError(ModelError):
    """Report a model whose architecture or settings the engine cannot run exactly."""


class VocabularyError(ModelError):
    """Report a tokenizer that lacks tag pieces or that loses text."""


class DeviceMemoryError(PastaError):
    """Report a GPU whose memory is full, and what takes how much of it, where it is known."""

    def __init__(self, reason: object, sizes: str = "") -> None:
        line = str(reason).strip().partition("\n")[0]
        super().__init__(
            f"{line}{sizes}",
            hint="a smaller cache (pasta serve --set cache_memory=20%), model or --dtype, "
            "--device cpu, or end what else is on the card (nvidia-smi)",
        )


class RemoteError(PastaError):
    """Report a remote server that fails, or whose reply is invalid."""


class BrokenAnswerError(RemoteError):
    """Report a server that failed in the middle of an answer, with the answer's text so far."""

    def __init__(self, message: str, text: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.text = text


def cause(error: Exception) -> str:
    """Return the cause of a failed read or write without system codes and without the path."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


def first_error(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    first = errors.exceptions[0]
    return first_error(first) if isinstance(first, BaseExceptionGroup) else first
