"""Prompt templates of judges: Markdown pages with three fields, each under a name and a version.

A template is never edited under its name: another wording is another version, and every stored
reply carries the hash of its page.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pasta_lm.errors import InputError, UsageError
from pasta_lm.judging.judge import Comparison
from pasta_lm.remote.chat import ChatRequest

FOLDER = Path(__file__).parent / "prompts"
FIELDS = ("instruction", "answer_a", "answer_b")
TOP_LOGPROBS = 5
"""Every endpoint allows so many candidates."""
MAX_STATED_TOKENS = 400
EXPECTED_STATED_TOKENS = 100
"""A guess: three sentences and a verdict."""
_PAGE = re.compile(
    r"\AMethod: (?P<method>[^\n]+)\n+# System\n+(?P<system>.*?)\n+# User\n+(?P<user>.*?)\n*\Z",
    re.DOTALL,
)
_FIELD = re.compile(r"\{\{(\w+)\}\}")


class Method(StrEnum):
    """How a verdict is read from a reply."""

    LOGPROBS = "log-probabilities"
    """The probabilities of A and of B as the only token, as in AlpacaEval 2."""
    STATED = "stated confidence"
    """The last line states the winner and a confidence, as in the paper."""


@dataclass(frozen=True, slots=True)
class JudgeTemplate:
    """One version of a judge's prompt."""

    name: str
    method: Method
    system: str
    user: str
    """With the three fields."""
    sha256: str
    """Of the page, the first 16 digits."""

    def request(self, comparison: Comparison) -> ChatRequest:
        """Return the request for one comparison; the first answer is A."""
        values = dict(zip(FIELDS, comparison[1:], strict=True))
        # One pass over all fields: an answer that spells a field stays as it is.
        filled = _FIELD.sub(lambda field: values[field[1]], self.user)
        messages = [
            {"role": "system", "content": self.system},
            {"role": "user", "content": filled},
        ]
        if self.method is Method.LOGPROBS:
            return ChatRequest(messages, max_tokens=1, temperature=0.0, top_logprobs=TOP_LOGPROBS)
        return ChatRequest(messages, max_tokens=MAX_STATED_TOKENS, temperature=0.0)

    @property
    def expected_reply_tokens(self) -> int:
        """Return the approximate length of a reply."""
        return 1 if self.method is Method.LOGPROBS else EXPECTED_STATED_TOKENS


def template_names() -> list[str]:
    """Return the names of the templates in the package."""
    return sorted(path.stem for path in FOLDER.glob("*.md"))


def load_template(name: str) -> JudgeTemplate:
    """Load a template.

    Args:
        name: A template of the package, such as ``stated-confidence-v1``, or the path of a page of
            the same form, ending in ``.md``.

    Raises:
        UsageError: there is no template of that name.
        InputError: the page has another form.
    """
    path = Path(name) if name.endswith(".md") else FOLDER / f"{name}.md"
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(
            f"no judge's template {name!r}: {path} cannot be read",
            hint=f"{', '.join(template_names())}, or a page of your own ending in .md",
        ) from exc
    page = _PAGE.match(text.replace("\r\n", "\n"))
    methods = [method.value for method in Method]
    if page is None or page["method"].strip() not in methods:
        raise InputError(
            f"{path} is not a judge's template",
            hint=f"a line 'Method: {' or '.join(methods)}', then '# System', then '# User'",
        )
    if sorted(_FIELD.findall(page["user"])) != sorted(FIELDS):
        wanted = ", ".join(f"{{{{{field}}}}}" for field in FIELDS)
        raise InputError(f"{path}: its user's part must have {wanted}, each once")
    sha256 = hashlib.sha256(text.encode()).hexdigest()[:16]
    method = Method(page["method"].strip())
    return JudgeTemplate(path.stem, method, page["system"], page["user"], sha256)
