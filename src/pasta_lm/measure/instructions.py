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
baseline's and the difference, paired by prompt. IFEval's answers are checked by ``lm_eval``; where
NLTK's data are missing, sentences are cut by its untrained Punkt.

Source: Zhou et al. 2023, "Instruction-Following Evaluation for Large Language Models", arXiv
2311.07911.
"""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from functools import cache, partial
from hashlib import sha256
from itertools import groupby, islice
from operator import itemgetter, sub
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import cast
from unittest.mock import patch

from pasta_lm.errors import InputError, MissingExtraError, UsageError
from pasta_lm.journal import Row, write_rows
from pasta_lm.language.document import parse_program
from pasta_lm.learn.data.annotated import Record
from pasta_lm.learn.data.answer_record import AnswerRecord
from pasta_lm.measure import answering
from pasta_lm.measure.answering import Progress, SetPrompt, System, answer_id
from pasta_lm.measure.cost import add_cost, measure, read_references, reading_systems
from pasta_lm.measure.prompt_sets import PARTS, SetFiles, read_sets
from pasta_lm.measure.speed import Answers, Systems, add_speed, systems_of
from pasta_lm.measure.table import Figures, KeyPath, Report, mean, ratio
from pasta_lm.recipe import check_choice, check_positive
from pasta_lm.run_folder import RunFolder, hash_files
from pasta_lm.strategies import PASTA, SEQUENTIAL
from pasta_lm.strategies.model import SERVER_KEYS
from pasta_lm.strategies.requests import STRATEGIES

PROMPTS, VERDICTS, REFERENCES = "prompts", "verdicts", "references"
SCORED, TIMED, UNMASKED = "scored", "timed", "unmasked"
MAY_CHANGE = ("batch_size", "pool_tokens", "device", *SERVER_KEYS)
NAMES = (PASTA, SEQUENTIAL)
PROVENANCE = ("hardware", "dtype", "commit", "version", "positions")
MEANING = (
    "answers: greedy, own repetition penalty; the limit is of all threads, tags included",
    "intervals: 95 %, bootstrap over prompts; differences are paired by prompt",
)
TITLES = {
    "forks": "answers that fork", "syncs": "answers with a sync",
    "legal": "legal tags", "well_formed": "well formed",
    "legal_unmasked": "legal tags, without the mask",
    "well_formed_unmasked": "well formed, without the mask",
}  # fmt: skip
WORD = re.compile(r"\w+")
READINGS = ("strict", "loose")
"""An answer is read as it is, or also without its first line, its last line or asterisks."""
MEASURES: dict[str, Callable[[AnswerRecord], float]] = {
    "repetition": lambda answer: repetition(answer.text),
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
    untaught: str | None = None  # the model before any training, which reads references, too
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


def evaluate_instructions(out: Path, settings: InstructionSettings, show: Progress) -> None:
    prompts, references = read_sets(settings.sets, settings.limit), list[Record]()
    inputs = {"sets": sha256(repr(prompts).encode()).hexdigest()}
    if settings.references is not None:
        ids = settings.reference_ids
        references = read_references(Path(settings.references), Path(ids) if ids else None)
        inputs["references"] = hash_files(settings.references)
    answering.require_models([settings.untaught])
    if any(item.checked for item in prompts):
        checkers()  # what would fail after hours of decoding fails now
    folder = RunFolder(out)
    inputs |= settings.hashes(settings.systems)
    folder.begin(asdict(settings), may_change=MAY_CHANGE, inputs=inputs)
    rows = [{"id": item.id, "set": item.group, "parts": item.parts} for item in prompts]
    write_rows(out / f"{PROMPTS}.jsonl", rows)

    def columns(prompt: SetPrompt) -> Row:
        return {"prompt_id": prompt.id, "set": prompt.group}

    wanted = workloads(folder, settings, prompts)
    answering.answer_workloads(wanted, settings, columns, show)
    gc.collect()  # before the models that read are loaded
    verdicts, answers = folder.journal(VERDICTS), folder.journal(SCORED).rows
    for prompt in prompts:
        for key in (answer_id(name, prompt.id) for name in NAMES):
            if prompt.checked is not None and key in answers and key not in verdicts.rows:
                row = check_ifeval(prompt.checked, answers[key]["text"])
                verdicts.append([{"id": key} | row])
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
        return [item for _, members in sets for item in islice(members, count)]

    both, journal = settings.systems, folder.journal
    return [
        answering.Workload(journal(TIMED), first(settings.num_timed), both, is_timed=True),
        answering.Workload(journal(SCORED), prompts, both),
        answering.Workload(journal(UNMASKED), first(settings.num_unmasked), both[1:], mask=False),
    ]


def instructions_report(out: Path) -> Report:
    folder = RunFolder(out)
    settings, prompts = folder.settings_of(InstructionSettings), folder.rows(PROMPTS)
    stored = {name: folder.rows(name) for name in (SCORED, TIMED, UNMASKED)}
    run = {name: systems_of((row["id"], row) for row in rows) for name, rows in stored.items()}
    verdicts = {row["id"]: row for row in folder.rows(VERDICTS)}
    answered = [row for row in prompts if all(row["id"] in run[SCORED][name] for name in NAMES)]
    if not answered:
        raise InputError(f"{out} has no prompt that both systems answered")
    baseline, taught = settings.systems
    head: Figures = {
        "kind": run[SCORED][PASTA][answered[0]["id"]].kind,
        "model": taught.model, "strategy": taught.strategy, "baseline": baseline.model,
        "max_tokens": settings.max_tokens, "repetition_penalty": settings.repetition_penalty,
        "num_prompts": len(answered), "num_unanswered": len(prompts) - len(answered),
    }  # fmt: skip
    for key in PROVENANCE:
        head[key] = sorted({row[key] for row in stored[SCORED] if row.get(key)})
    report = Report("A taught model and its sequential baseline on instructions", [*MEANING])
    report.add((), head)
    for group, members in groupby(answered, key=itemgetter("set")):
        path, rows = ("sets", group), list(members)
        _add_prompts(report, path, rows, run)
        report.add(path, {"parts": {}})
        for parts in PARTS:
            if some := [row for row in rows if row["parts"] == parts]:
                _add_prompts(report, (*path, "parts", parts), some, run)
        checked = [[verdicts.get(answer_id(name, row["id"])) for name in NAMES] for row in rows]
        both = [(ours, base) for ours, base in checked if ours and base]
        figures = {"num_prompts": len(both), **ifeval_figures(both)} if both else None
        report.add(path, {"ifeval": figures}, {"ifeval": "IFEval"}, len(both))
    _add_text(report, (), *_sides(answered, run[SCORED]))
    if references := folder.rows(REFERENCES):
        add_cost(report, references, ("references",))
    else:
        report.add((), {"references": None})
    return report


def _sides(prompts: Sequence[Row], scored: Systems) -> tuple[Answers, Answers]:
    keys = [row["id"] for row in prompts]
    ours, base = ({key: scored[name][key] for key in keys} for name in NAMES)
    return ours, base


def _add_prompts(
    report: Report, path: KeyPath, prompts: Sequence[Row], run: Mapping[str, Systems]
) -> None:
    ours, base = _sides(prompts, run[SCORED])
    add_speed(report, path, ours, base, (run[TIMED][PASTA], run[TIMED][SEQUENTIAL]))
    reasons = {key: {ours[key].finish_reason, base[key].finish_reason} for key in ours}
    ended = [key for key in ours if "length" not in reasons[key]]
    if len(ended) < len(ours):
        some = {key: ours[key] for key in ended}, {key: base[key] for key in ended}
        add_speed(report, (*path, "both_ended"), *some)
    documents = [parse_program(answer.program) for answer in ours.values()]
    structure: Figures = {
        "forks": mean([bool(document.blocks) for document in documents]),
        "syncs": mean([document.num_syncs > 0 for document in documents]),
    }
    report.add(path, structure | _shares("", [*ours.values()]), TITLES, len(ours))
    free = run[UNMASKED][PASTA]
    unmasked = [free[key] for key in ours if key in free]
    shares = _shares("_unmasked", unmasked) | {"num_unmasked": len(unmasked)}
    report.add(path, shares, TITLES, len(unmasked))
    _add_text(report, path, ours, base)


def _shares(ending: str, answers: Sequence[AnswerRecord]) -> Figures:
    flags = {
        "legal": [not answer.num_illegal for answer in answers],
        "well_formed": [answer.is_well_formed for answer in answers],
    }
    return {f"{k}{ending}": round(fmean(v), 5) if v else None for k, v in flags.items()}


def _add_text(report: Report, path: KeyPath, ours: Answers, base: Answers) -> None:
    for key, measure_of in MEASURES.items():
        values, base_values = ([measure_of(x) for x in side.values()] for side in (ours, base))
        if key == "thinks" and not any((*values, *base_values)):
            continue
        figures = {
            "pasta": mean(values), "sequential": mean(base_values),
            "difference": mean([*map(sub, values, base_values)]), "num_pairs": len(ours),
        }  # fmt: skip
        report.add((*path, "text"), {key: figures}, {key: key}, len(ours))


def repetition(text: str) -> float:
    """Return the share of a text's 4-grams of words that occurred before; case does not count."""
    words = WORD.findall(text.casefold())
    grams = [tuple(words[start : start + 4]) for start in range(len(words) - 3)]
    return (len(grams) - len(set(grams))) / max(len(grams), 1)


@cache
def checkers() -> ModuleType:
    """Import IFEval's checkers without the rest of lm_eval, and without a download."""
    try:
        import langdetect
        import lm_eval
        import nltk

        # The package of all tasks imports metrics and data sets that IFEval does not need.
        tasks = ModuleType("lm_eval.tasks")
        tasks.__path__ = [str(Path(lm_eval.__path__[0]) / "tasks")]
        offline = patch.object(nltk, "download", lambda *_, **__: False)
        alone = patch.dict(sys.modules, {"lm_eval.tasks": tasks})
        with offline, alone, redirect_stdout(sys.stderr):  # it prints that it downloads
            from lm_eval.tasks.ifeval import instructions_util, utils
    except ImportError as exc:
        raise MissingExtraError(f"IFEval's checkers (module {exc.name})", "ifeval") from exc
    langdetect.DetectorFactory.seed = 0  # otherwise the language of a short text is drawn
    try:
        nltk.data.find("tokenizers/punkt_tab")
    except LookupError:
        punkt = nltk.tokenize.punkt.PunktSentenceTokenizer()
        instructions_util._get_sentence_tokenizer = lambda: punkt
        nltk.word_tokenize = partial(nltk.word_tokenize, preserve_line=True)
    return cast(ModuleType, utils)


def check_ifeval(prompt: Row, text: str) -> Row:
    try:
        result = checkers().process_results({"key": 0, **prompt}, [text])
    except KeyError as exc:
        raise InputError(f"lm_eval has no checker for {exc}") from exc
    return {key: list(result[f"inst_level_{key}_acc"]) for key in READINGS}


def ifeval_figures(pairs: Sequence[tuple[Row, Row]]) -> Figures:
    """Return accuracies of two systems and their difference, paired by prompt.

    Prompt-level: all instructions of a prompt are followed. Instruction-level: over all
    instructions; its interval too is over prompts.
    """
    figures: Figures = {}
    for key in READINGS:
        flags = [(ours[key], base[key]) for ours, base in pairs]
        sizes = [len(ours) for ours, _ in flags]
        # By the ending of the keys: ours, the baseline's, the difference.
        for end, a, b in (("", 1, 0), ("_baseline", 0, 1), ("_difference", 1, -1)):
            prompts = [a * all(ours) + b * all(base) for ours, base in flags]
            instructions = [a * sum(ours) + b * sum(base) for ours, base in flags]
            figures[f"prompt_{key}{end}"] = mean(prompts)
            figures[f"instruction_{key}{end}"] = ratio(instructions, sizes)
    return figures
