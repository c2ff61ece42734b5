"""How an answer begins where one clause decides: it says in a sentence how it reads the clause.

One token in 250 depends on that clause, and what it decides comes late: which number a line begins
with. A small model left both to chance (``docs/log.md``). People who explain what they do say first
how they understand the question; so do these answers, and everything after it can be held to it. No
grade asks for the sentence: who leaves it out, and is right, has lost nothing.
"""

from __future__ import annotations

FREE, CHAIN = "Each stands alone.", "Each builds on the last."


def preface(*, is_chain: bool, separator: str = "\n") -> str:
    """Return the sentence that says how the items of an answer depend on one another.

    Args:
        is_chain: Whether each needs the one before.
        separator: What stands between the items, and after the sentence.
    """
    return (CHAIN if is_chain else FREE) + separator
