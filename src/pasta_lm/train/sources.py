"""Where packs come from: a file of records, records in memory, or tasks drawn on the spot."""

from __future__ import annotations

import itertools
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import replace
from pathlib import Path
from random import Random

from torch.utils.data import Dataset

from pasta_lm import tasks
from pasta_lm.data.encode import EncodedExample
from pasta_lm.data.packing import pack
from pasta_lm.data.records import Record, read_records
from pasta_lm.errors import InputError
from pasta_lm.language.document import Document
from pasta_lm.language.events import Text
from pasta_lm.strategies.baselines import APAR_RULES
from pasta_lm.tasks import Task
from pasta_lm.tasks.drills import Drill, clause_drill, drill
from pasta_lm.tasks.formats import CHAIN_LABEL, FREE_LABEL
from pasta_lm.train.annotators import ANNOTATORS
from pasta_lm.train.config import DataConfig, TasksConfig

Encode = Callable[[Record], EncodedExample]
Pack = list[EncodedExample]

FEW_RECORDS = 3
"""The most records of a prompt while only few are wanted."""
FIRST_DRILL, LAST_DRILL = (4, 1), (8, 5)
"""The most records and columns of a drill, at first and when drills have grown."""


class Packs(Dataset[Pack]):
    """Packs of records that are all at hand; the order is that of the list."""

    def __init__(self, packs: Sequence[Pack]) -> None:
        """Keep the packs."""
        self._packs = packs

    def __len__(self) -> int:
        """Return how many packs there are."""
        return len(self._packs)

    def __getitem__(self, index: int) -> Pack:
        """Return one pack."""
        return self._packs[index]


class TaskPacks(Dataset[Pack]):
    """Packs of tasks, each drawn when it is wanted; the same index gives the same pack."""

    def __init__(
        self,
        config: TasksConfig,
        max_tokens: int,
        num_packs: int,
        encode: Encode,
        last_position: int | None = None,
    ) -> None:
        """Keep what is to be drawn; nothing is drawn yet."""
        self._last_position = last_position
        self._config = config
        self._max_tokens = max_tokens
        self._num_packs = num_packs
        self._encode = encode

    def __len__(self) -> int:
        """Return how many packs there are."""
        return self._num_packs

    def __getitem__(self, index: int) -> Pack:
        """Draw tasks of all families in turn until the next would not fit.

        Raises:
            InputError: not even the first fits, or one reaches beyond the model's context.
        """
        found: Pack = []
        room = self._max_tokens
        is_early = index < self._config.few_first * self._num_packs
        for example in self._examples(index, FEW_RECORDS if is_early else None):
            room -= len(example)
            if room < 0:
                break
            found.append(example)
        if not found:
            raise InputError(f"nothing to learn: a task is longer than {self._max_tokens} tokens")
        check_context(found, self._last_position)
        return found

    def _examples(self, index: int, most: int | None) -> Iterator[EncodedExample]:
        """Yield what a pack is filled with: tasks, and drills in their share."""
        config = self._config
        done = index / self._num_packs
        share = 1.0 if done < config.drills_first else config.drills * (1 - done)
        seed = config.seed * 1_000_000 + index
        random = Random(f"drills/{seed}")
        all_tasks = tasks.mixture(config.split, seed, max_records=most)
        for number in itertools.count(1000 * seed):
            if random.random() < share:
                grown = done / config.drills_first if config.drills_first else 1
                asks_clause = random.random() < config.clauses
                if asks_clause:
                    yield self._decided(number, clause_drill(number))
                else:
                    yield self._encode(_record(number, _drill(number, grown)))
            else:
                yield self._task(next(all_tasks), most)

    def _task(self, task: Task, most: int | None) -> EncodedExample:
        """Return a task encoded; where its answer parts from its twin's, tokens decide.

        The first says how it reads the clause; with what follows its preface it acts on that.
        """
        example = self._answered(task)
        has_weight = self._config.decision_weight != 1
        twin = tasks.pair_partner(task, max_records=most) if has_weight else None
        if twin is None:
            return example
        other = self._answered(twin)
        indices = _parting(example, other)
        if task.preface:
            indices |= _parting(example, other, self._preface(task), self._preface(twin))
        return self._weighted(example, indices)

    def _decided(self, number: int, drawn: Drill) -> EncodedExample:
        """Return a drill about a clause; where it parts from the other answer, a token decides."""
        example = self._encode(_record(number, drawn))
        if self._config.decision_weight == 1:
            return example
        turned = replace(drawn, answer=FREE_LABEL if drawn.answer == CHAIN_LABEL else CHAIN_LABEL)
        return self._weighted(example, _parting(example, self._encode(_record(number, turned))))

    def _preface(self, task: Task) -> int:
        """Return the number of tokens of a task's preface."""
        example = self._encode(_record(0, Drill("", task.preface.rstrip())))
        return len(example) - example.num_prompt

    def _answered(self, task: Task) -> EncodedExample:
        annotate = ANNOTATORS[self._config.annotator]
        return self._encode(Record(task.id, task.prompt, annotate(task, 0), "tasks"))

    def _weighted(self, example: EncodedExample, indices: Set[int]) -> EncodedExample:
        weights = array("f", [1] * len(example))
        for index in indices:
            weights[index] = self._config.decision_weight
        return replace(example, weights=weights)


def _parting(
    ours: EncodedExample, theirs: EncodedExample, skip: int = 0, skipped: int = 0
) -> set[int]:
    """Return where one answer first has another label, after so many tokens of each: if it has."""
    first = ours.num_prompt - 1 + skip
    pairs = zip(ours.labels[first:], theirs.labels[theirs.num_prompt - 1 + skipped :], strict=False)
    parted = (index for index, (own, other) in enumerate(pairs, first) if own != other)
    return {*itertools.islice(parted, 1)}


def _record(number: int, drawn: Drill) -> Record:
    return Record(f"drill-{number}", drawn.prompt, Document((Text(drawn.answer),)), "tasks")


def _drill(number: int, done: float) -> Drill:
    """Return a drill of finding, small for half of their time (1) and growing as long again."""
    grown = min(max(done - 0.5, 0), 1)
    pairs = zip(FIRST_DRILL, LAST_DRILL, strict=True)
    sizes = [low + round(grown * (high - low)) for low, high in pairs]
    return drill(number, most_records=sizes[0], most_columns=sizes[1])


PackSet = Packs | TaskPacks


def packs_of(
    config: DataConfig,
    encode: Encode,
    num_packs: int | None,
    seed: int,
    *,
    last_position: int | None = None,
) -> PackSet:
    """Return the packs that a recipe asks for.

    Args:
        config: What is learned.
        encode: What encodes a record for the model that learns.
        num_packs: How many are drawn where data do not end.
        seed: Of the order.
        last_position: The last that the model can have; None: any.

    Raises:
        InputError: the file is no annotated data, none of it fits, or some of it reaches beyond
            the model's context.
    """
    stripped: Encode = lambda record: encode(  # noqa: E731
        replace(record, document=_as_learned(record.document, config))
    )
    if config.tasks is not None:
        assert num_packs is not None
        return TaskPacks(config.tasks, config.max_tokens, num_packs, stripped, last_position)
    assert config.file is not None
    packs = pack_records(read_records(Path(config.file)), stripped, config.max_tokens, seed)
    for index in range(len(packs)):
        check_context(packs[index], last_position)
    return packs


def _as_learned(document: Document, config: DataConfig) -> Document:
    """Return an answer as a recipe wants it: as it is, without tags, or forked by a rule."""
    if config.rule is not None:
        return APAR_RULES[config.rule](document.plain_text)
    return document.without_tags() if config.plain else document


def check_context(pack: Pack, last_position: int | None) -> None:
    """Refuse what the model could never be asked: it would learn what nobody can decode.

    Args:
        pack: Examples to learn.
        last_position: The last that the model can have; None: any.

    Raises:
        InputError: an example reaches beyond it; the record is named.
    """
    for example in pack:
        if last_position is not None and max(example.positions) > last_position:
            raise InputError(
                f"record {example.id} reaches position {max(example.positions)}, and the model's "
                f"last is {last_position}",
                hint="leave it out, or lower data.max_tokens so that longer records are left out",
            )


def pack_records(records: Sequence[Record], encode: Encode, max_tokens: int, seed: int) -> Packs:
    """Encode and pack records; those that are too long are named on standard error.

    Raises:
        InputError: none is left.
    """
    packing = pack(map(encode, records), max_tokens, seed)
    if packing.too_long:
        shown = ", ".join(packing.too_long[:5])
        print(  # noqa: T201
            f"pasta: {len(packing.too_long)} of {len(records)} records are longer than "
            f"{max_tokens} tokens and left out: {shown}",
            file=sys.stderr,
        )
    if not packing.packs:
        raise InputError(f"nothing to learn: none of {len(records)} records can be trained on")
    return Packs(packing.packs)
