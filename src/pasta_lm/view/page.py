"""The page of ``static/`` as one file: styles, modules and runs inside, nothing to load.

Modules follow three rules, so that joining them needs no parser: an import is one line of names
from a neighbour, an export stands before its declaration, and top-level names differ everywhere.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from pasta_lm.view.run_data import RunData

STATIC = Path(__file__).with_name("static")

_IMPORT = re.compile(r'^import \{ [\w, ]+ \} from "\./(\w+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:class|function|const) )", re.MULTILINE)


def page_of(runs: Sequence[RunData]) -> str:
    """Return a page of HTML that shows runs and loads nothing.

    Its policy allows its own script and styles, by hash, and no connection, image, frame, form or
    text that is parsed as HTML.
    """
    styles, script = (STATIC / "page.css").read_text("utf-8"), joined_modules()
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(styles)}'; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
    )
    # A browser reads no end of the script in ASCII without "<", whatever the model wrote.
    data = json.dumps(runs, separators=(",", ":")).replace("<", "\\u003c")
    page = (STATIC / "index.html").read_text("utf-8")
    for part, whole in {
        '<meta charset="utf-8">\n': '<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n',
        '<link rel="icon" href="icon.svg">\n': "",
        '<link rel="stylesheet" href="page.css">\n': f"<style>{styles}</style>\n",
        '<script type="module" src="main.js"></script>\n': (
            f'<script type="application/json" id="runs">{data}</script>\n'
            f'<script type="module">{script}</script>\n'
        ),
    }.items():
        before, match, after = page.partition(part)
        assert match, f"index.html lacks {part!r}"
        page = before + whole + after
    return page


@cache
def joined_modules() -> str:
    """Return a module with all that it imports, each once and before its use, as one module."""
    joined: dict[str, str] = {}

    def add(name: str) -> None:
        if name in joined:
            return
        text = (STATIC / name).read_text("utf-8")
        joined[name] = ""  # a circle of imports ends here
        for imported in _IMPORT.findall(text):
            add(imported)
        del joined[name]
        joined[name] = _EXPORT.sub("", _IMPORT.sub("", text))

    add("main.js")
    return "\n".join(joined.values())


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
