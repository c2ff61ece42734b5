"""PASTA-LANG, the language of tags: lexer, parser, document, checks and repairs."""

from __future__ import annotations

from pasta_lm.language.check import Diagnostic, check, fix, render
from pasta_lm.language.document import Block, Document, Item, from_events, parse
from pasta_lm.language.events import Promise, Sync, Text
from pasta_lm.language.lexer import Lexer
from pasta_lm.language.parser import Form, Parser
from pasta_lm.language.tags import escape, unescape

__all__ = [
    "Block", "Diagnostic", "Document", "Form", "Item", "Lexer", "Parser", "Promise", "Sync",
    "Text", "check", "escape", "fix", "from_events", "parse", "render", "unescape",
]  # fmt: skip
