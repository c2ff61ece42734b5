"""Training data as packs of whole examples."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Generic, Protocol, TypeVar

from pasta_lm.errors import InputError
from pasta_lm.language.document import Document
from pasta_lm.learn.data.baselines import RULES
from pasta_lm.learn.data.encode import EncodedExample
from pasta_lm.learn.train.config import DataConfig
from pasta_lm.models.annotated import Record, read_ids, read_records

Encode = Callable[[Record], EncodedExample]
Pack = list[EncodedExample]


class PackSet(Protocol):
    """The packs of a training: a list, or a data set that generates them."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Pack: ...


def packs_of(
    config: DataConfig, encode: Encode, seed: int, *, last_position: int | None = None
) -> list[Pack]:
    """Encode and pack the records of a recipe's files, shuffled by a seed.

    Raises:
        InputError: a file is not annotated data, none of it fits, a record exceeds the model's
            context, or a file of ids holds out nothing.
    """
    records = [
        replace(record, document=_as_learned(record.document, config))
        for record in _read_included(config)
    ]
    packs = _pack_records(records, encode, config.max_tokens, seed)
    for pack in packs:
        check_context(pack, last_position)
    return packs


def _read_included(config: DataConfig) -> list[Record]:
    """Return the records of a recipe's files, those that are held out left out."""
    records = [record for path in config.paths for record in read_records(path)]
    known = {record.id for record in records}
    held_out: set[str] = set()
    for path in config.exclude_paths:
        ids = read_ids(path)
        unknown = [name for name in ids if name not in known]
        if len(unknown) == len(ids):
            shown = ", ".join(ids[:3]) or "it is empty"
            raise InputError(
                f"data.exclude {path} holds out nothing: no record has one of its ids ({shown})",
                hint=f"the records of data.file have ids such as {records[0].id}"
                if records
                else "data.file has no records",
            )
        if unknown:
            say_left_out(
                f"{len(unknown)} of {len(ids)} ids of {path} are in no record and", unknown
            )
        held_out.update(ids)
    return [record for record in records if record.id not in held_out]


def _as_learned(document: Document, config: DataConfig) -> Document:
    if config.rule is not None:
        return RULES[config.rule](document)
    return document.without_tags() if config.plain else document


def check_context(pack: Pack, last_position: int | None) -> None:
    """Raise an InputError if an example exceeds the model's context: it could not be decoded."""
    for example in pack:
        if last_position is not None and max(example.positions) > last_position:
            raise InputError(
                f"record {example.id} reaches position {max(example.positions)}, and the model's "
                f"last is {last_position}",
                hint="leave it out, or lower data.max_tokens so that longer records are left out",
            )


def _pack_records(
    records: Sequence[Record], encode: Encode, max_tokens: int, seed: int
) -> list[Pack]:
    """Encode and pack records; those that are too long are named on standard error."""
    packing = fill_packs(map(encode, records), max_tokens, seed)
    counted = f"{len(packing.too_long)} of {len(records)} records"
    say_left_out(f"{counted} are longer than {max_tokens} tokens and", packing.too_long)
    if not packing.packs:
        raise InputError(f"nothing to learn: none of {len(records)} records can be trained on")
    return packing.packs


class Packable(Protocol):
    """Anything with an id and a number of tokens."""

    @property
    def id(self) -> str:
        """Return the id."""

    def __len__(self) -> int: ...


P = TypeVar("P", bound=Packable)


@dataclass(frozen=True, slots=True)
class Packing(Generic[P]):
    """Packs of examples, and the ids of examples that are longer than a pack."""

    packs: list[list[P]]
    too_long: list[str]


def fill_packs(examples: Iterable[P], max_tokens: int, seed: int = 0) -> Packing[P]:
    """Shuffle examples by a seed, and fill packs of at most ``max_tokens`` in turn."""
    order: Sequence[P] = list(examples)
    order = Random(seed).sample(order, len(order))
    packs: list[list[P]] = []
    too_long: list[str] = []
    room = 0
    for example in order:
        if len(example) > max_tokens:
            too_long.append(example.id)
            continue
        if len(example) > room:
            packs.append([])
            room = max_tokens
        packs[-1].append(example)
        room -= len(example)
    return Packing(packs, too_long)


def say_left_out(reason: str, ids: Sequence[str]) -> None:
    """Print a line on standard error with the first ids of what is left out, if anything is."""
    if ids:
        print(f"pasta: {reason} left out: {', '.join(ids[:5])}", file=sys.stderr)  # noqa: T201
