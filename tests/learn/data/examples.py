"""Encoded examples spelled out: their tokens by name, what each sees, what each predicts."""

from __future__ import annotations

from hypothesis import strategies as st

from pasta_lm.interpreter.placement import Entries, Entry
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.interpreter.visibility import Row
from pasta_lm.language.document import Block, Document, Item, parse
from pasta_lm.language.events import Sync, Text
from pasta_lm.language.tags import PIECES
from pasta_lm.learn.data.annotated import Record
from pasta_lm.learn.data.encode import NO_LABEL, EncodedExample, encode_example
from pasta_lm.models.vocabulary import Vocabulary
from tests.fakes.recording_engine import Recorded
from tests.programs import Program
from tests.reference import PROMPT, Name, Place, is_visible, numbered
from tests.small_tokenizers import FAMILIES, add_markers

SHORT = {
    '<promise topic="': "<p",
    "<async>": "[",
    "</async>": "]",
    "<sync/>": "|",
    **{f'" tokens="{units}"/>': f">{units}" for units in range(1, 65)},
}
"""Tag pieces as tables and drawings spell them."""


def bare(family: str = "byte_level") -> Vocabulary:
    """Return a vocabulary without a chat template: a prompt is a begin-of-text and its words."""
    tokenizer = FAMILIES[family]()
    return Vocabulary(tokenizer, add_markers(tokenizer, PIECES))


BARE = bare()
EOS = BARE.encode_prompt("<|end|>")[-1]


def encoded(
    written: str | Document,
    prompt: str = "q",
    strategy: PositionStrategy = PositionStrategy.PREDICT,
    vocabulary: Vocabulary = BARE,
) -> EncodedExample:
    document = parse(written) if isinstance(written, str) else written
    return encode_example(Record("r", prompt, document), vocabulary, EOS, strategy)


def spelled(token: int, vocabulary: Vocabulary = BARE) -> str:
    """Return how tables spell a token or label: tags shortened, ``-`` for no label."""
    special = {NO_LABEL: "-", EOS: "end", vocabulary.prompt_prefix[0]: "begin"}
    special |= {vocabulary.piece_id(piece): short for piece, short in SHORT.items()}
    return special.get(token) or vocabulary.token_text(token)


def names(example: EncodedExample) -> list[Name]:
    """Name each token by its thread and its index there, as ``tests.reference`` does."""
    owners = example.owners if example.rows is not None else [1] * len(example)
    threads = [owner - 1 for owner in owners][example.num_prompt :]
    return numbered([PROMPT] * example.num_prompt + threads)


def is_seen(example: EncodedExample, query: int, key: int) -> bool:
    """Say the rule of visibility once more, on what the example carries."""
    if example.rows is None:
        return key <= query
    return key <= query and key < example.rows[example.row_of[query]][example.owners[key]]


def places(example: EncodedExample) -> dict[Name, Place]:
    named = names(example)
    slots = range(len(example))
    return {
        name: Place(
            example.positions[query],
            frozenset(named[key] for key in slots if is_seen(example, query, key)),
        )
        for query, name in enumerate(named)
    }


def named_entries(seen: Recorded) -> list[Name]:
    """Name each entry that an engine fed by its thread and its index there."""
    thread_of = {thread.owner: thread.id for thread in seen.response.interpreter.threads}
    return numbered(thread_of.get(entry.owner, PROMPT) for entry in seen.entries.items)


def met_by(seen: Recorded) -> dict[tuple[int, int], tuple[int, int, frozenset[tuple[int, int]]]]:
    """Return the token, the position and the sight of everything that an engine fed."""
    named, entries = named_entries(seen), seen.entries
    slots = range(len(named))
    return {
        name: (
            entries[query].token,
            entries[query].position,
            frozenset(named[key] for key in slots if is_visible(entries, query, key)),
        )
        for query, name in enumerate(named)
    }


def program_of(document: Document, prompt: str, vocabulary: Vocabulary) -> Program:
    """Return what an engine is forced to decode of an answer."""
    ids = vocabulary.encode_prompt([{"role": "user", "content": prompt}])
    return Program(tuple(ids), vocabulary.encode_document(document))


texts = st.lists(st.sampled_from(["one", " two", " the", "x", "\n", " 12", "<sync/>"])).map("".join)
blocks = st.builds(
    Block,
    st.sampled_from(["tips", "two words"]),
    st.none() | st.integers(1, 4),
    texts.map(lambda text: (Text(text),)),
)
items: st.SearchStrategy[Item] = st.one_of(st.builds(Text, texts), blocks, blocks, st.just(Sync()))
documents = st.lists(items, max_size=8).map(lambda found: Document(tuple(found)))


def entries_of(example: EncodedExample) -> Entries:
    if example.rows is None:
        return Entries.of_prompt(example.token_ids)
    rows = [Row(dict(enumerate(row))) for row in example.rows]
    columns = (example.token_ids, example.owners, example.positions, example.row_of)
    items = [
        Entry(token, owner, position, rows[row])
        for token, owner, position, row in zip(*columns, strict=True)
    ]
    return Entries(items, num_owners=len(example.rows[0]))
