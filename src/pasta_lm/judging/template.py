"""What a judge is told: a page of prose with three places to fill in, under a name and a version.

A template is never edited under its name: another wording is another version, and every stored
reply carries the hash of the page that it answers.
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
PLACES = ("instruction", "answer_a", "answer_b")
_PAGE = re.compile(
    r"\AMethod: (?P<method>[^\n]+)\n+# System\n+(?P<system>.*?)\n+# User\n+(?P<user>.*?)\n*\Z",
    re.DOTALL,
)
_PLACE = re.compile(r"\{\{(\w+)\}\}")


class Method(StrEnum):
    """How a verdict is read from a reply."""

    LOGPROBS = "log-probabilities"
    """One token; the share of A and of B among its candidates (AlpacaEval 2's way)."""
    STATED = "stated confidence"
    """The last line names the winner and a confidence (the paper's way)."""


@dataclass(frozen=True, slots=True)
class JudgeTemplate:
    """One version of what a judge is told.

    Attributes:
        name: With its version.
        method: How its replies are read.
        system: The first turn.
        user: The second, with the places to fill in.
        sha256: Of the page, the first 16 digits.
    """

    name: str
    method: Method
    system: str
    user: str
    sha256: str

    def request(self, comparison: Comparison) -> ChatRequest:
        """Return what is asked about one comparison: the first answer is A.

        All places are filled at once, so an answer that spells a place stays as it is.
        """
        texts = dict(
            zip(PLACES, (comparison.prompt, comparison.first, comparison.second), strict=True)
        )
        filled = _PLACE.sub(lambda place: texts[place[1]], self.user)
        messages = [
            {"role": "system", "content": self.system},
            {"role": "user", "content": filled},
        ]
        if self.method is Method.LOGPROBS:
            return ChatRequest(messages, max_tokens=1, temperature=0.0, top_logprobs=TOP_LOGPROBS)
        return ChatRequest(messages, max_tokens=MAX_STATED_TOKENS, temperature=0.0)

    @property
    def expected_reply_tokens(self) -> int:
        """Return how long a reply is thought to be, in tokens."""
        return 1 if self.method is Method.LOGPROBS else USUAL_STATED_TOKENS


TOP_LOGPROBS = 5
"""Candidates that are asked for: what every endpoint allows."""
MAX_STATED_TOKENS = 400
USUAL_STATED_TOKENS = 100
"""Of three sentences and a verdict: a guess."""


def template_names() -> list[str]:
    """Return the templates that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.md"))


def load_template(name: str) -> JudgeTemplate:
    """Load a template that comes with the package, or one's own.

    Args:
        name: ``stated-confidence-v1``, or the path of a page of the same form, ending in ``.md``.

    Raises:
        UsageError: there is none of that name.
        InputError: the page has another form.
    """
    path = Path(name) if name.endswith(".md") else FOLDER / f"{name}.md"
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        names = ", ".join(template_names())
        raise UsageError(
            f"no judge's template {name!r}: {path} cannot be read",
            hint=f"{names}, or a page of your own ending in .md",
        ) from exc
    page = _PAGE.match(text.replace("\r\n", "\n"))
    methods = [method.value for method in Method]
    if page is None or page["method"].strip() not in methods:
        raise InputError(
            f"{path} is no judge's template",
            hint=f"a line 'Method: {' or '.join(methods)}', then '# System', then '# User'",
        )
    found = _PLACE.findall(page["user"])
    if sorted(found) != sorted(PLACES):
        wanted = ", ".join(f"{{{{{place}}}}}" for place in PLACES)
        raise InputError(f"{path}: its user's part must have {wanted}, each once")
    sha256 = hashlib.sha256(text.encode()).hexdigest()[:16]
    method = Method(page["method"].strip())
    return JudgeTemplate(path.stem, method, page["system"], page["user"], sha256)
