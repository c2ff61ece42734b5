"""The benchmark ``instructions``: a taught model and its sequential baseline on real instructions.

A run has a folder; every file of rows is a journal, so a stopped run goes on::

    settings.json       the settings
    prompts.jsonl       ids and labels of the prompts, never their texts
    scored.jsonl        every answer, decoded in batches
    timed.jsonl         answers to some prompts, decoded one at a time
    unmasked.jsonl      answers of the taught model without the mask of legal tags
    verdicts.jsonl      which of IFEval's instructions an answer follows
    references.jsonl    nats of given answers under both models (``cost``)

All figures are computed from these files, without a model and without the prompts: per set of
prompts, and within it by the parts that the prompts ask for. A figure of text stands beside the
baseline's and the difference, paired by prompt.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from itertools import groupby, islice
from operator import itemgetter, sub
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from pasta_lm.errors import InputError, UsageError
from pasta_lm.journal import Row, write_rows
from pasta_lm.language.document import parse_program
from pasta_lm.learn.data.annotated import Record
from pasta_lm.learn.data.answer_record import AnswerRecord
from pasta_lm.measure import answer_text, answering
from pasta_lm.measure.answering import SetPrompt, System, answer_id
from pasta_lm.measure.cost import add_cost, measure, read_references, reading_systems
from pasta_lm.measure.prompt_sets import PARTS, SetFiles, read_sets
from pasta_lm.measure.speed import Systems, add_speed, systems_of
from pasta_lm.measure.table import Figures, Place, Report, mean
from pasta_lm.recipe import check_choice, check_positive
from pasta_lm.run_folder import RunFolder, hash_files
from pasta_lm.strategies import PASTA, SEQUENTIAL
from pasta_lm.strategies.model import SERVER_KEYS
from pasta_lm.strategies.requests import STRATEGIES

PROMPTS, VERDICTS, REFERENCES = "prompts", "verdicts", "references"
SCORED, TIMED, UNMASKED = "scored", "timed", "unmasked"
MAY_CHANGE = ("fork_biases", "batch_size", "pool_tokens", "device", *SERVER_KEYS)
NAMES = (PASTA, SEQUENTIAL)
PROVENANCE = ("hardware", "dtype", "commit", "version", "positions")
MEANING = (
    "answers: greedy; the limit is of all threads together, tags included",
    "intervals: 95 %, bootstrap over prompts; differences are paired by prompt",
)
TITLES = {
    "forks": "answers that fork",
    "syncs": "answers with a sync",
    "legal": "legal tags",
    "well_formed": "well formed",
    "legal_unmasked": "legal tags, without the mask",
    "well_formed_unmasked": "well formed, without the mask",
}
MEASURES: dict[str, Callable[[AnswerRecord], float]] = {
    "repetition": lambda answer: answer_text.repetition(answer.text),
    "cut": lambda answer: answer.finish_reason == "length",
    "thinks": lambda answer: bool(answer.num_thought_tokens),
}
"""Measures of an answer's text by key; the share that thinks only where an answer does: training
may unlearn it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionSettings(answering.AnswerSettings):
    """The recipe of ``pasta evaluate instructions``; ``limit`` counts prompts of each set."""

    strategy: str = PASTA
    """By which the taught model answers; its system is named ``pasta`` whatever it is."""
    fork_biases: tuple[float, ...] = ()  # at which the taught model answers all prompts, too
    untaught: str | None = None  # the model before any training, which answers and reads, too
    sets: SetFiles = SetFiles()
    num_timed: int = 25  # prompts of each set that both models answer one at a time, too
    num_unmasked: int = 50  # prompts of each set that the taught model also answers unmasked
    references: str | None = None  # annotated answers for the cost of not seeing; None: none
    reference_ids: str | None = None  # a file with ids of those that no training read; None: all
    batch_size: int = 192
    pool_tokens: int = 40_960

    def __post_init__(self) -> None:
        answering.check_served(self.servers, self.model, (system.model for system in self.systems))
        check_choice("instructions.strategy", self.strategy, STRATEGIES)
        check_positive("instructions", self, "limit", "max_tokens", "batch_size", "pool_tokens")
        if min(self.num_timed, self.num_unmasked) < 0:
            raise UsageError("instructions: numbers of prompts must not be below 0")

    @property
    def systems(self) -> tuple[System, System]:
        return self.sequential, System(PASTA, self.strategy, self.taught)

    @property
    def others(self) -> list[System]:
        """Return the taught model with other biases, and the untaught model beside a baseline."""
        name, untaught = self.strategy, self.untaught
        others = [System(f"fork_bias {x:+g}", name, self.taught, x) for x in self.fork_biases]
        if untaught is not None and untaught != self.sequential.model:
            others.append(System("untaught", SEQUENTIAL, untaught))
        return others


def evaluate_instructions(
    out: Path, settings: InstructionSettings, show: answering.Progress,
    models: answering.Models | None = None,
) -> None:  # fmt: skip
    prompts, references = read_sets(settings.sets, settings.limit), list[Record]()
    if settings.references is not None:
        ids = settings.reference_ids
        references = read_references(Path(settings.references), Path(ids) if ids else None)
    answering.require_models([] if models else [settings.untaught])
    if any(item.checked for item in prompts):
        answer_text.checkers()  # what would fail after hours of decoding fails now
    folder = RunFolder(out)
    inputs = {"sets": sha256(repr(prompts).encode()).hexdigest()}
    if settings.references is not None:
        inputs["references"] = hash_files(settings.references)
    inputs |= {} if models else settings.hashes((*settings.systems, *settings.others))
    folder.begin(asdict(settings), may_change=MAY_CHANGE, inputs=inputs)
    rows = [{"id": item.id, "set": item.group, "parts": item.parts} for item in prompts]
    write_rows(out / f"{PROMPTS}.jsonl", rows)

    def columns(prompt: SetPrompt) -> Row:
        return {"prompt_id": prompt.id, "set": prompt.group}

    wanted = workloads(folder, settings, prompts)
    answering.answer_workloads(wanted, settings, columns, show, models)
    gc.collect()  # before the models that read are loaded
    folder.journal(VERDICTS).append([*_verdicts(folder, prompts)])
    if references and not folder.rows(REFERENCES):
        baseline, taught = settings.systems
        names = taught.model, baseline.model, settings.untaught
        readers = reading_systems(names, "float32", settings.device)
        write_rows(out / f"{REFERENCES}.jsonl", list(measure(references, readers)))


def workloads(
    folder: RunFolder, settings: InstructionSettings, prompts: Sequence[SetPrompt]
) -> list[answering.Workload]:
    def first(count: int) -> list[SetPrompt]:
        sets = groupby(prompts, key=lambda item: item.group)
        return [item for _, own in sets for item in islice(own, count)]

    both, journal = settings.systems, folder.journal
    return [
        answering.Workload(journal(TIMED), first(settings.num_timed), both, is_timed=True),
        answering.Workload(journal(SCORED), prompts, (*both, *settings.others)),
        answering.Workload(journal(UNMASKED), first(settings.num_unmasked), both[1:], mask=False),
    ]


def _verdicts(folder: RunFolder, prompts: Sequence[SetPrompt]) -> Iterator[Row]:
    known, answers = folder.journal(VERDICTS).rows, folder.journal(SCORED).rows
    for prompt in prompts:
        for key in (answer_id(name, prompt.id) for name in NAMES):
            if prompt.checked is not None and key in answers and key not in known:
                yield {"id": key} | answer_text.check_ifeval(prompt.checked, answers[key]["text"])


class _Stored(NamedTuple):
    """The answers of a run, and IFEval's verdicts by id of the answer."""

    scored: Systems
    timed: Systems
    unmasked: Systems
    verdicts: dict[str, Row]


def instructions_report(out: Path) -> Report:
    folder = RunFolder(out)
    settings, rows = folder.settings_of(InstructionSettings), folder.rows
    scored, timed, unmasked = (
        systems_of((row["id"], row) for row in rows(name)) for name in (SCORED, TIMED, UNMASKED)
    )
    stored = _Stored(scored, timed, unmasked, {row["id"]: row for row in rows(VERDICTS)})
    prompts, references = rows(PROMPTS), rows(REFERENCES)
    answered = [row for row in prompts if all(row["id"] in scored[name] for name in NAMES)]
    if not answered:
        raise InputError(f"{out} has no prompt that both systems answered")
    (baseline, taught), made = settings.systems, rows(SCORED)
    head: Figures = {
        "kind": scored[PASTA][answered[0]["id"]].kind,
        "model": taught.model,
        "strategy": taught.strategy,
        "baseline": baseline.model,
        "max_tokens": settings.max_tokens,
        "repetition_penalty": settings.repetition_penalty,
        "num_prompts": len(answered),
        "num_unanswered": len(prompts) - len(answered),
        **{key: sorted({row[key] for row in made if row.get(key)}) for key in PROVENANCE},
    }
    report = Report("A taught model and its sequential baseline on instructions", [*MEANING])
    report.add((), head)
    for group, members in groupby(answered, key=itemgetter("set")):
        place, own = ("sets", group), list(members)
        _add_parts(report, place, own, stored)
        checked = [[stored.verdicts.get(answer_id(n, row["id"])) for n in NAMES] for row in own]
        both = [(ours, base) for ours, base in checked if ours and base]
        figures = {"num_prompts": len(both), **answer_text.ifeval_figures(both)} if both else None
        report.add(place, {"ifeval": figures}, {"ifeval": "IFEval"}, len(both))
    for name in (system.name for system in settings.others):
        own = [row for row in answered if row["id"] in scored[name]]
        _add_parts(report, ("others", name), own, stored, name)
    _add_text(report, (), answered, stored)
    if references:
        add_cost(report, references, ("references",))
    else:
        report.add((), {"references": None})
    return report


def _add_parts(
    report: Report, place: Place, prompts: Sequence[Row], stored: _Stored, name: str = PASTA
) -> None:
    _add_prompts(report, place, prompts, stored, name)
    report.add(place, {"parts": {}})
    for parts in PARTS:
        if some := [row for row in prompts if row["parts"] == parts]:
            _add_prompts(report, (*place, "parts", parts), some, stored, name)


def _add_prompts(
    report: Report, place: Place, prompts: Sequence[Row], stored: _Stored, name: str
) -> None:
    keys, timed, free = [row["id"] for row in prompts], stored.timed, stored.unmasked[name]
    ours, base = ({key: stored.scored[own][key] for key in keys} for own in (name, SEQUENTIAL))
    add_speed(report, place, ours, base, (timed[name], timed[SEQUENTIAL]))
    ended = [
        key for key in keys if "length" not in (ours[key].finish_reason, base[key].finish_reason)
    ]
    if len(ended) < len(keys):
        both = place + ("both_ended",)
        add_speed(report, both, {k: ours[k] for k in ended}, {k: base[k] for k in ended})
    documents = [parse_program(answer.program) for answer in ours.values()]
    structure: Figures = {
        "forks": mean([bool(document.blocks) for document in documents]),
        "syncs": mean([document.num_syncs > 0 for document in documents]),
    }
    report.add(place, structure | _shares("", [*ours.values()]), TITLES, len(keys))
    unmasked = [free[key] for key in keys if key in free]
    shares = _shares("_unmasked", unmasked) | {"num_unmasked": len(unmasked)}
    report.add(place, shares, TITLES, len(unmasked))
    _add_text(report, place, prompts, stored, name)


def _shares(ending: str, answers: Sequence[AnswerRecord]) -> Figures:
    flags = {
        "legal": [not answer.num_illegal for answer in answers],
        "well_formed": [answer.is_well_formed for answer in answers],
    }
    return {f"{k}{ending}": round(fmean(v), 5) if v else None for k, v in flags.items()}


def _add_text(
    report: Report, place: Place, prompts: Sequence[Row], stored: _Stored, name: str = PASTA
) -> None:
    for key, of in MEASURES.items():
        answers = [stored.scored[own] for own in (name, SEQUENTIAL)]
        ours, base = ([of(own[row["id"]]) for row in prompts] for own in answers)
        if key == "thinks" and not any((*ours, *base)):
            continue
        figures = {
            "pasta": mean(ours),
            "sequential": mean(base),
            "difference": mean([*map(sub, ours, base)]),
            "num_pairs": len(prompts),
        }
        report.add((*place, "text"), {key: figures}, {key: key}, len(prompts))
