"""PASTA-LANG, the language of tags: lexer, parser, document, checks and repairs."""

from pasta_lm.language.check import check, fix, render
from pasta_lm.language.document import Document, parse
from pasta_lm.language.lexer import Lexer
from pasta_lm.language.parser import Form

__all__ = ["Document", "Form", "Lexer", "check", "fix", "parse", "render"]
