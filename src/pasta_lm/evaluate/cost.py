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

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from pasta_lm.data.encode import NO_LABEL, EncodedExample, encode_example
from pasta_lm.engines.annotated import Record, read_records
from pasta_lm.engines.vocabulary import Vocabulary
from pasta_lm.errors import InputError, cause
from pasta_lm.evaluate.intervals import as_dict, ratio
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.journal import Row
from pasta_lm.language.lexer import LexemeKind

Figures = dict[str, Any]

FIRST, REST, MAIN, AFTER_SYNC = REGIONS = ("first", "rest", "main", "after_sync")
"""A token is the first of a block, another one of a block, main's, or main's behind a sync."""
PASTA, TAUGHT, BASELINE, UNTAUGHT = "pasta", "taught_sequential", "sequential", "untaught"
MAIN_OWNER = 1  # of the entries: the prompt's owner is 0, and blocks follow
SPACE = b" \n\t\r"

Nats = tuple[Sequence[float], Sequence[float]]
"""Of each label of an example: over all tokens, and over all but the tags; 0.0 without a label."""
Reader = Callable[[Sequence[EncodedExample]], Sequence[Nats]]
"""Returns the nats of some examples; ``train.losses.token_nats`` with a model."""


class ReadingSystem(NamedTuple):
    """A model that reads given answers."""

    name: str
    vocabulary: Vocabulary
    eos_id: int
    read: Reader
    positions: PositionStrategy = PositionStrategy.CONTINUE
    """Of main after a promise; for 'pasta' only."""


class Content(NamedTuple):
    """One token of an answer's text."""

    label: int
    """The place of the token that predicts it."""
    text: bytes
    region: str


def read_references(file: Path, ids: Path | None = None) -> list[Record]:
    """Read reference answers: annotated data, or those of its rows whose ids a file lists.

    Raises:
        InputError: a file cannot be read, or an id is no row.
    """
    records = read_records(file)
    if ids is None:
        return records
    by_id = {record.id: record for record in records}
    wanted = read_ids(ids)
    lacking = [name for name in wanted if name not in by_id]
    if lacking:
        raise InputError(f"{file} has no {lacking[0]}, which {ids} lists")
    return [by_id[name] for name in wanted]


def read_ids(path: Path) -> list[str]:
    """Read a file with one id a line.

    Raises:
        InputError: it cannot be read, or is empty.
    """
    try:
        found = path.read_text("utf-8").split()
    except (OSError, UnicodeDecodeError) as exc:
        raise InputError(f"{path} cannot be read: {cause(exc)}") from exc
    if not found:
        raise InputError(f"{path} lists no id")
    return found


def measure(
    records: Sequence[Record], taught: ReadingSystem, others: Sequence[ReadingSystem]
) -> Iterator[Row]:
    """Yield a row for every answer and system; an answer's rows follow each other by system.

    Args:
        records: The reference answers.
        taught: The system 'pasta', whose encoding says which text is in which region.
        others: Systems that read the plain text.
    """
    annotated = [_encode(record, taught) for record in records]
    regions = [_regions(example, taught.vocabulary) for example in annotated]
    plain = [replace(record, document=record.document.without_tags()) for record in records]
    for system in (taught, *others):
        is_taught = system is taught
        read = annotated if is_taught else [_encode(record, system) for record in plain]
        sequential = read if not is_taught else [_encode(record, taught) for record in plain]
        nats = system.read(read)
        for number, record in enumerate(records):
            counted = _content(sequential[number], system.vocabulary, regions[number])
            tokens = _content(read[number], system.vocabulary, None) if is_taught else counted
            yield {
                "id": f"{system.name}/{record.id}",
                "reference_id": record.id,
                "system": system.name,
                "num_blocks": len(record.document.blocks),
                "num_syncs": record.document.num_syncs,
                "num_tokens": {
                    region: sum(one.region == region for one in counted) for region in REGIONS
                },
                **_sums(read[number], tokens, nats[number]),
            }


def _encode(record: Record, system: ReadingSystem) -> EncodedExample:
    return encode_example(record, system.vocabulary, system.eos_id, system.positions)


def _sums(example: EncodedExample, tokens: Sequence[Content], nats: Nats) -> Row:
    """Return the nats of an answer's text by region, and those of its tags and of its end."""
    whole, given_text = nats

    def by_region(values: Sequence[float]) -> dict[str, float]:
        return {
            region: round(sum(values[one.label] for one in tokens if one.region == region), 4)
            for region in REGIONS
        }

    labelled = {place for place, label in enumerate(example.labels) if label != NO_LABEL}
    end = _end(example)
    tags = labelled - {one.label for one in tokens} - {end}
    return {
        "nats": by_region(whole),
        "nats_given_text": by_region(given_text),
        "tag_nats": round(sum(whole[place] for place in tags), 4),
        "num_tag_tokens": len(tags),
        "end_nats": round(whole[end], 4),
    }


def _targets(example: EncodedExample) -> dict[int, int]:
    """Return by place of a token the place of the token that predicts it."""
    found: dict[int, int] = {}
    last: dict[int, int] = {MAIN_OWNER: example.num_prompt - 1}
    for place in range(example.num_prompt, len(example)):
        owner = example.owners[place] if example.rows is not None else MAIN_OWNER
        if owner in last:
            found[place] = last[owner]
        last[owner] = place
    return found


def _end(example: EncodedExample) -> int:
    """Return the place of the token that predicts the end-of-text: main's last."""
    if example.rows is None:
        return len(example) - 1
    main = [place for place, owner in enumerate(example.owners) if owner <= MAIN_OWNER]
    return main[-1]


def _content(
    example: EncodedExample, vocabulary: Vocabulary, regions: Sequence[str] | None
) -> list[Content]:
    """Return the tokens of an answer's text in reading order, tags and topics left out.

    Args:
        example: The encoded answer.
        vocabulary: Of the model.
        regions: By byte of the plain text, the region; None: the answer's own tags say it.
    """
    found: list[Content] = []
    targets = _targets(example)
    region, is_topic, begun, place_in_text = MAIN, False, set[int](), 0
    for place in range(example.num_prompt, len(example)):
        token = example.token_ids[place]
        lexeme = vocabulary.id_to_lexeme(token)
        if lexeme is not None:
            is_topic = lexeme.kind is LexemeKind.PROMISE_OPEN
            region = AFTER_SYNC if lexeme.kind is LexemeKind.SYNC else region
            continue
        if is_topic:
            continue
        text = vocabulary.token_bytes(token)
        owner = example.owners[place] if example.rows is not None else MAIN_OWNER
        own = region
        if regions is not None:
            own = _region_at(regions, place_in_text, text)
        elif owner != MAIN_OWNER:
            own = REST if owner in begun else FIRST
            begun.add(owner)
        place_in_text += len(text)
        found.append(Content(targets[place], text, own))
    return found


def _regions(example: EncodedExample, vocabulary: Vocabulary) -> list[str]:
    """Return by byte of the plain text in which region it is."""
    return [one.region for one in _content(example, vocabulary, None) for _ in one.text]


def _region_at(regions: Sequence[str], begin: int, text: bytes) -> str:
    """Return the region of a token: that of its first byte which is no white space."""
    offset = next((i for i, byte in enumerate(text) if byte not in SPACE), 0)
    return regions[min(begin + offset, len(regions) - 1)]


def cost_report(rows: Sequence[Mapping[str, Any]]) -> Figures:
    """Return the figures of some rows: over all answers, and over those with blocks."""
    forked = {row["reference_id"] for row in rows if row["num_blocks"]}
    return {
        "kind": "teacher_forced",
        **_figures(rows),
        "forked": _figures([row for row in rows if row["reference_id"] in forked]),
    }


def _figures(rows: Sequence[Mapping[str, Any]]) -> Figures:
    systems: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        systems.setdefault(row["system"], {})[row["reference_id"]] = row
    base = systems.get(BASELINE, {})
    counts = [row["num_tokens"] for row in base.values()]
    pairs = {
        "cost": (PASTA, BASELINE, "nats"),
        "cost_given_text": (PASTA, BASELINE, "nats_given_text"),
        "cost_of_visibility": (PASTA, TAUGHT, "nats"),
        "cost_of_training": (TAUGHT, BASELINE, "nats"),
        "baseline_gain": (BASELINE, UNTAUGHT, "nats"),
    }
    found: Figures = {
        "num_answers": len(base),
        "num_tokens": {region: sum(count[region] for count in counts) for region in REGIONS},
        "nats": {
            name: as_dict(_difference(found, {}, base, "nats", REGIONS))
            for name, found in systems.items()
        },
    }
    for name, (ours, theirs, key) in pairs.items():
        if ours in systems and theirs in systems:
            sides = systems[ours], systems[theirs], base, key
            found[name] = as_dict(_difference(*sides, REGIONS))
            found[f"{name}_by_region"] = {
                region: as_dict(_difference(*sides, [region])) for region in REGIONS
            }
    tags = systems.get(PASTA, {}).values()
    found["tag_nats"] = as_dict(
        ratio([row["tag_nats"] for row in tags], [row["num_tag_tokens"] for row in tags])
    )
    return found


def _difference(
    ours: Mapping[str, Mapping[str, Any]],
    theirs: Mapping[str, Mapping[str, Any]],
    base: Mapping[str, Mapping[str, Any]],
    key: str,
    regions: Sequence[str],
) -> Any:
    """Return nats per token of some regions, ours less theirs; an interval over answers."""

    def nats(side: Mapping[str, Mapping[str, Any]], name: str) -> float:
        return sum(side[name][key][region] for region in regions) if side else 0.0

    names = [name for name in base if name in ours]
    return ratio(
        [nats(ours, name) - nats(theirs, name) for name in names],
        [sum(base[name]["num_tokens"][region] for region in regions) for name in names],
    )
