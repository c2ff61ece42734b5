"""The cost of not seeing: nats per token of given answers, under PASTA's visibility and without.

Reference answers that nobody trained on are read by several systems with teacher forcing: the
taught model under its own visibility ('pasta'), the taught model with the tags stripped
('taught_sequential'), the sequential baseline ('sequential') and, if it is given, the model before
any training ('untaught').

An answer's text is the same to all systems, so all nats are divided by the same count: the tokens
of its plain text, encoded as one. They are split by where a token stands in the annotated answer.
Tags and topics are no content and are counted apart.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pasta_lm.errors import InputError, ModelError
from pasta_lm.interpreter.positions import Join, PositionStrategy
from pasta_lm.journal import Row
from pasta_lm.language.lexer import LexemeKind
from pasta_lm.learn.data.annotated import Record, read_ids, read_records
from pasta_lm.learn.data.encode import NO_LABEL, EncodedExample, encode_example
from pasta_lm.measure.table import Interval, KeyPath, Report, ratio
from pasta_lm.models.vocabulary import Vocabulary
from pasta_lm.strategies.requests import NO_TAG_PIECES

if TYPE_CHECKING:
    from pasta_lm.engines.local.loading import LoadedModel

Answers = dict[str, Row]  # a system's rows by id of the answer

FIRST, REST, MAIN, AFTER_SYNC = REGIONS = ("first", "rest", "main", "after_sync")
"""A token is the first of a block, another one of a block, main's, or main's behind a sync."""
PASTA, TAUGHT, BASELINE, UNTAUGHT = "pasta", "taught_sequential", "sequential", "untaught"
MAIN_OWNER = 1  # the prompt's owner is 0, and blocks follow
SPACE = b" \n\t\r"
COSTS = {
    "cost": (PASTA, BASELINE, "cost: pasta less the baseline"),
    "cost_of_visibility": (PASTA, TAUGHT, "pasta less the same model sequentially"),
    "cost_of_training": (TAUGHT, BASELINE, "the taught model less the baseline, both sequential"),
    "baseline_gain": (BASELINE, UNTAUGHT, "the baseline less the untaught model"),
}
"""The two systems whose nats are subtracted, and the title."""

Names = tuple[str, str, str | None]
"""The taught model, its sequential baseline, and the model before any training, if it reads."""
Reader = Callable[[Sequence[EncodedExample]], Iterable[Sequence[float]]]
"""Returns the nats of each label of some examples; 0.0 without a label."""


class ReadingSystem(NamedTuple):
    """A model that reads given answers."""

    name: str
    vocabulary: Vocabulary
    eos_id: int
    read: Reader
    positions: PositionStrategy = PositionStrategy.CONTINUE  # after a promise; for 'pasta' only
    join: Join = Join.SHARED  # what main sees from a sync on; for 'pasta' only


class Content(NamedTuple):
    """One token of an answer's text."""

    label: int  # the index of the token that predicts it
    text: bytes
    region: str


def read_references(file: Path, ids: Path | None = None) -> list[Record]:
    records = read_records(file)
    if ids is None:
        return records
    by_id = {record.id: record for record in records}
    names = read_ids(ids)
    lacking = [name for name in names if name not in by_id]
    if lacking or not names:
        reason = f"{file} has no {lacking[0]}, which {ids} lists" if lacking else f"{ids} has no id"
        raise InputError(reason)
    return [by_id[name] for name in names]


def measure(records: Sequence[Record], systems: Iterable[ReadingSystem]) -> Iterator[Row]:
    """Yield a row for every answer and system.

    The first system is 'pasta', whose encoding says which text is in which region; the others read
    the plain text. A system is loaded when the one before is forgotten: models may be large.
    """
    plain = [replace(record, document=record.document.without_tags()) for record in records]
    regions: list[list[str]] = []
    for system in systems:
        untagged = [_encode(record, system) for record in plain]
        examples, contents = untagged, list[list[Content]]()
        if not regions:
            examples = [_encode(record, system) for record in records]
            contents = [[*_content(example, system.vocabulary)] for example in examples]
            regions = [[item.region for item in items for _ in item.text] for items in contents]
        pairs = zip(untagged, regions, strict=True)
        counted = [[*_content(example, system.vocabulary, known)] for example, known in pairs]
        columns = (records, counted, examples, contents or counted, system.read(examples))
        for record, count, example, content, nats in zip(*columns, strict=True):
            numbers = Counter(item.region for item in count)
            yield {
                "id": f"{system.name}/{record.id}", "reference_id": record.id,
                "system": system.name, "num_blocks": len(record.document.blocks),
                "num_syncs": record.document.num_syncs,
                "num_tokens": {region: numbers[region] for region in REGIONS},
                **_sums(example, content, nats),
            }  # fmt: skip
        del system


def _encode(record: Record, system: ReadingSystem) -> EncodedExample:
    _, vocabulary, eos_id, _, positions, join = system
    return encode_example(record, vocabulary, eos_id, positions, join=join)


def _sums(example: EncodedExample, tokens: Sequence[Content], nats: Sequence[float]) -> Row:
    by_region = dict.fromkeys(REGIONS, 0.0)
    for item in tokens:
        by_region[item.region] += nats[item.label]
    end = max(index for index in range(len(example)) if _owner(example, index) <= MAIN_OWNER)
    labelled = {index for index, label in enumerate(example.labels) if label != NO_LABEL}
    tags = labelled - {item.label for item in tokens} - {end}
    tag_nats = round(sum(nats[index] for index in tags), 4)
    text_nats = {region: round(value, 4) for region, value in by_region.items()}
    counts = {"tag_nats": tag_nats, "num_tag_tokens": len(tags)}
    return {"nats": text_nats, **counts, "end_nats": round(nats[end], 4)}


def _owner(example: EncodedExample, index: int) -> int:
    if example.rows is None or example.owners[index] in example.main_owners:
        return MAIN_OWNER
    return example.owners[index]


def _content(
    example: EncodedExample, vocabulary: Vocabulary, regions: Sequence[str] | None = None
) -> Iterator[Content]:
    """Yield the tokens of an answer's text in reading order, tags and topics left out.

    ``regions`` has the region of each byte of the plain text; None: read from the answer's tags.
    """
    last = {MAIN_OWNER: example.num_prompt - 1}
    in_main, is_topic, begun, num_bytes = MAIN, False, set[int](), 0
    fed_again = set(example.fed_again)
    for index in range(example.num_prompt, len(example)):
        if index in fed_again:
            continue
        owner = _owner(example, index)
        label, last[owner] = last.get(owner), index
        if (lexeme := vocabulary.id_to_lexeme(example.token_ids[index])) is not None:
            is_topic = lexeme.kind is LexemeKind.PROMISE_OPEN
            in_main = AFTER_SYNC if lexeme.kind is LexemeKind.SYNC else in_main
        elif not is_topic:
            assert label is not None  # a block begins with a tag
            text = vocabulary.token_bytes(example.token_ids[index])
            region = in_main
            if regions is not None:
                # A token belongs to the region of its first byte that is no space.
                begin = num_bytes + len(text) - len(text.lstrip(SPACE) or text)
                region = regions[min(begin, len(regions) - 1)]
            elif owner != MAIN_OWNER:
                region = REST if owner in begun else FIRST
                begun.add(owner)
            num_bytes += len(text)
            yield Content(label, text, region)


def add_cost(report: Report, rows: Sequence[Row], path: KeyPath = ()) -> None:
    report.add(path, {"kind": "teacher_forced"})
    _add_figures(report, rows, path)
    _add_figures(report, [row for row in rows if row["num_blocks"]], (*path, "forked"))


def _add_figures(report: Report, rows: Sequence[Row], path: KeyPath) -> None:
    systems: dict[str, Answers] = {}
    for row in rows:
        systems.setdefault(row["system"], {})[row["reference_id"]] = row
    base, taught = systems.get(BASELINE, {}), systems.get(PASTA, {}).values()
    counts = [row["num_tokens"] for row in base.values()]
    tags = ([row[key] for row in taught] for key in ("tag_nats", "num_tag_tokens"))
    head = {
        "num_answers": len(base),
        "num_tokens": {region: sum(count[region] for count in counts) for region in REGIONS},
        "nats": {name: _cost(base, REGIONS, side) for name, side in systems.items()},
        "tag_nats": ratio(*tags),
    }
    report.add(path, head)
    for name, (ours, theirs, title) in COSTS.items():
        if ours in systems and theirs in systems:
            cost = partial(_cost, base, ours=systems[ours], theirs=systems[theirs])
            by_region = {region: cost([region]) for region in REGIONS}
            figures = {name: cost(REGIONS), f"{name}_by_region": by_region}
            report.add(path, figures, dict.fromkeys(figures, title), len(base))


def _cost(
    base: Answers, regions: Sequence[str], ours: Answers, theirs: Answers | None = None
) -> Interval | None:
    def total(rows: Answers, name: str, column: str = "nats") -> float:
        return float(sum(rows[name][column][region] for region in regions))

    names = [name for name in base if name in ours]
    nats = [total(ours, name) - (total(theirs, name) if theirs else 0) for name in names]
    return ratio(nats, [total(base, name, "num_tokens") for name in names])


def reading_systems(names: Names, dtype: str | None, device: str | None) -> Iterator[ReadingSystem]:
    """Load the models that read, one after the other; the taught one for both its systems."""
    from pasta_lm.engines.local.loading import load  # imports torch

    for name, systems in zip(names, ((PASTA, TAUGHT), (BASELINE,), (UNTAUGHT,)), strict=True):
        if name is None:
            continue
        loaded = load(name, dtype=dtype, device=device)
        if PASTA in systems and not loaded.vocabulary.has_pieces:
            raise ModelError(f"{name}: {NO_TAG_PIECES}", hint="name a taught model: --model")
        facts = loaded.vocabulary, min(loaded.eos_ids), partial(_read, loaded)
        for system in systems:
            yield ReadingSystem(system, *facts, loaded.positions, loaded.join)
        del loaded, facts
        gc.collect()  # before the next one is loaded


def _read(loaded: LoadedModel, examples: Sequence[EncodedExample]) -> Iterator[Sequence[float]]:
    from pasta_lm.learn.train.losses import token_nats  # imports torch

    rows = token_nats(loaded.model, loaded.vocabulary, examples)
    return (row.nats for row in rows)
