"""The plain causal sequence behind every token of an answer with join ``recompute``.

Worked out from the written form alone: no slots, no rows, no positions.
"""

from __future__ import annotations

from collections.abc import Sequence

from pasta_lm.engines import Tokens
from pasta_lm.interpreter.placement import Entries
from pasta_lm.language.lexer import LexemeKind
from pasta_lm.language.tags import ASYNC_CLOSE, ASYNC_OPEN
from pasta_lm.models.encoded import EncodedDocument
from tests.reference import Name, is_visible

Ids = tuple[int, ...]


def plain_sequences(
    tokens: Tokens, prompt: Sequence[int], answer: EncodedDocument
) -> dict[Name, Ids]:
    """Return all ids that each token of an answer sees, in order, itself the last."""
    opening, closing = tokens.piece_id(ASYNC_OPEN), tokens.piece_id(ASYNC_CLOSE)
    found: dict[Name, Ids] = {}
    main: Ids = tuple(prompt)
    pending: list[tuple[int, Ids]] = []  # each unjoined block, and its place in main
    blocks = iter(answer.blocks)
    num_blocks = 0
    for index, token in enumerate(answer.main):
        lexeme = tokens.id_to_lexeme(token)
        if lexeme is not None and lexeme.kind is LexemeKind.SYNC:
            for place, block in reversed(pending):
                main = main[:place] + block + main[place:]
            pending.clear()
        main += (token,)
        found[0, index] = main
        if lexeme is not None and lexeme.kind is LexemeKind.PROMISE_CLOSE:
            num_blocks += 1
            block = (opening, *next(blocks), closing)
            pending.append((len(main), block))
            for length in range(len(block)):
                found[num_blocks, length] = main + block[: length + 1]
    return found


def seen_sequence(entries: Entries, slot: int) -> Ids:
    """Return the ids that an entry sees by position, after checking that no position is missing."""
    seen = [key for key in range(slot + 1) if is_visible(entries, slot, key)]
    at = {entries[key].position: entries[key].token for key in seen}
    assert len(at) == len(seen), "two visible entries stand at one position"
    assert sorted(at) == list(range(len(at))), "positions are not consecutive"
    assert entries[slot].position == len(at) - 1
    return tuple(at[position] for position in sorted(at))
