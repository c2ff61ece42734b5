"""Join ``recompute`` in training: what follows a sync is learned behind the written form."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given

from pasta_lm.errors import UsageError
from pasta_lm.interpreter.positions import Join, PositionStrategy
from pasta_lm.language.document import Document, parse
from pasta_lm.learn.data.annotated import Record
from pasta_lm.learn.data.encode import NO_LABEL, EncodedExample, encode_example
from tests.learn.data.examples import BARE, EOS, documents, encoded, entries_of, program_of, spelled
from tests.plain_sequences import plain_sequences, seen_sequence


def recomputed(written: str | Document, prompt: str = "q") -> EncodedExample:
    document = parse(written) if isinstance(written, str) else written
    return encode_example(
        Record("r", prompt, document), BARE, EOS, PositionStrategy.CONTINUE, join=Join.RECOMPUTE
    )


def test_what_a_sync_feeds_again_predicts_nothing() -> None:
    example = recomputed(
        'A<promise topic="t" tokens="1"/><async>a</async>'
        'B<promise topic="u" tokens="2"/><async>d</async><sync/>C'
    )
    rows = zip(example.token_ids, example.positions, example.labels, strict=True)
    found = [f"{spelled(token)} {place} {spelled(label)}" for token, place, label in rows]
    before = ["begin 0 -", "q 1 A", "A 2 <p", "<p 3 t", "t 4 >1", ">1 5 B", "[ 6 a", "a 7 ]"]
    second = ["] 8 -", "B 6 <p", "<p 7 u", "u 8 >2", ">2 9 |", "[ 10 d", "d 11 ]", "] 12 -"]
    again = ["B 9 -", "<p 10 -", "u 11 -", ">2 12 -", "[ 13 -", "d 14 -", "] 15 -"]
    assert found == [*before, *second, *again, "| 16 C", "C 17 end"]
    assert len(example.main_owners) == 2
    assert [example.positions[slot] for slot in example.fed_again] == [9, 10, 11, 12, 13, 14, 15]


@given(documents)
def test_every_label_is_learned_behind_the_sequence_that_decoding_shows(document: Document) -> None:
    program = program_of(document, "Hello", BARE)
    sequences = plain_sequences(BARE, program.prompt, program.answer)
    sequences[0, -1] = program.prompt
    lengths = [len(program.answer.main) - 1, *(len(b) for b in program.answer.blocks)]
    expected: Counter[tuple[tuple[int, ...], int]] = Counter()
    for (thread, index), ids in sequences.items():
        if thread and index > lengths[thread]:
            continue  # </async> predicts nothing
        following = EOS
        if thread or index < lengths[thread]:
            following = sequences[thread, index + 1][-1]
        expected[ids, following] += 1
    example = recomputed(document, "Hello")
    entries = entries_of(example)
    labelled = [slot for slot, label in enumerate(example.labels) if label != NO_LABEL]
    found = Counter((seen_sequence(entries, s), example.labels[s]) for s in labelled)
    assert found == expected


@given(documents)
def test_main_decides_as_often_as_with_the_shared_join(document: Document) -> None:
    shared = encoded(document, "Hello", PositionStrategy.CONTINUE)
    assert len(recomputed(document, "Hello").decisions) == len(shared.decisions)


def test_a_join_that_leaves_no_gaps_is_refused_with_positions_that_do() -> None:
    record = Record("r", "q", parse('A<promise topic="t" tokens="1"/><async>a</async><sync/>B'))
    with pytest.raises(UsageError, match="'predict' does"):
        encode_example(record, BARE, EOS, PositionStrategy.PREDICT, join=Join.RECOMPUTE)
