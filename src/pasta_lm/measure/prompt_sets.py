"""The prompts that systems answer, and answers from files that are their baseline.

``alpaca`` reads one file. ``instructions`` reads up to four sets: AlpacaEval's and IFEval's, which
are never stored, and the held-out rows of the project's corpora.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from pasta_lm.errors import InputError, MissingExtraError, cause
from pasta_lm.journal import Row, parse_unique, read_lines, read_objects
from pasta_lm.learn.data import question_of
from pasta_lm.learn.data.annotated import read_ids, read_records
from pasta_lm.measure.answering import SetPrompt

PARTS = ("one", "several", "between")
HELD_OUT = "held_out.txt"
SOURCES = ("dataset", "domain", "source")  # keys that name a row's data set; the first one counts
HUB_FILE = "alpaca_eval.json"  # the file of a hub data set that is read if none is named
_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*(?<!\.json)(?<!\.jsonl)(?<!\.gz)(:.+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class SetFiles:
    """Where the sets are; a set without a file is left out. ``[sets]`` of a recipe."""

    alpaca: str | None = None  # AlpacaEval's instructions: JSON lines with 'id' and 'instruction'
    alpaca_parts: str | None = None
    """Labels of AlpacaEval's prompts by id, written before any model answered; None: none."""
    ifeval: str | None = None
    """IFEval's prompts: JSON lines with 'key', 'prompt', 'instruction_id_list', 'kwargs'."""
    starter: str | None = None  # the folder of the starter, as corpora/starter; its held-out rows
    instructions: str | None = None
    """The folder of the project's instructions, such as corpora/instructions; the held-out rows."""


def read_sets(files: SetFiles, limit: int | None = None) -> list[SetPrompt]:
    """Read the first so many prompts of each set; their groups are the sets, ids SET/ID.

    A set's order is drawn by the hash of its ids: the first prompts are a sample of it.
    """
    sets = {
        "alpaca": files.alpaca and _alpaca(files.alpaca, files.alpaca_parts),
        "ifeval": files.ifeval and read_ifeval(Path(files.ifeval)),
        "starter": files.starter and _starter(Path(files.starter)),
        "instructions": files.instructions and _instructions(Path(files.instructions)),
    }
    prompts: list[SetPrompt] = []
    for name, members in sets.items():
        drawn = [item._replace(id=f"{name}/{item.id}", group=name) for item in members or ()]
        prompts += sorted(drawn, key=lambda item: sha256(item.id.encode()).digest())[:limit]
    if not prompts:
        hint = "a recipe names them: in a clone, runs/recipes/instructions.toml is one"
        raise InputError("no set of prompts is named", hint=hint)
    return prompts


def _alpaca(source: str, labels: str | None) -> list[SetPrompt]:
    prompts, parts = read_instructions(source), read_labels(Path(labels)) if labels else {}
    if lacking := [item.id for item in prompts if parts and item.id not in parts]:
        raise InputError(f"{labels} has no label for {len(lacking)} prompts, such as {lacking[0]}")
    return [item._replace(parts=parts.get(item.id)) for item in prompts]


def read_labels(path: Path) -> dict[str, str]:
    try:
        labels = parse_unique(path.read_text("utf-8-sig"))["parts"]
        wrong = [name for name, label in labels.items() if label not in PARTS]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise InputError(f"{path} has no labels: {cause(exc)}") from exc
    if wrong:
        raise InputError(f"{path}: {wrong[0]} is {labels[wrong[0]]!r}, none of {', '.join(PARTS)}")
    return dict(labels)


def read_ifeval(path: Path) -> list[SetPrompt]:
    prompts, kinds = list[SetPrompt](), {"prompt": str, "instruction_id_list": list, "kwargs": list}
    for number, row in read_objects(path):
        for key, kind in kinds.items():
            if not isinstance(row.get(key), kind):
                raise InputError(f"{path}:{number}: no {key!r}, as IFEval's prompts have it")
        prompts.append(SetPrompt(str(row.get("key", number - 1)), row["prompt"], checked=row))
    return prompts


def _starter(folder: Path) -> list[SetPrompt]:
    first, second = (
        {record.id: record for record in read_records(folder / name)}
        for name in ("starter.jsonl", "second_pass.jsonl")
    )
    prompts = []
    for name in read_ids(folder / HELD_OUT):
        forks = {bool(side[name].document.blocks) for side in (first, second)}
        parts = "between" if len(forks) > 1 else "several" if forks == {True} else "one"
        prompts.append(SetPrompt(name, first[name].prompt, parts=parts))
    return prompts


def _instructions(folder: Path) -> list[SetPrompt]:
    file = folder / "instructions.jsonl"
    rows = {row["id"]: row for _, row in read_objects(file)}
    kept, problem = map(rows.__getitem__, read_ids(folder / HELD_OUT)), f"{file}: no 'instruction'"
    return [SetPrompt(row["id"], question_of(row, problem), parts=row.get("parts")) for row in kept]


def read_instructions(source: str, limit: int | None = None) -> list[SetPrompt]:
    """Read the first so many instructions; their groups are data sets, such as ``koala``.

    ``source`` is a file of JSON lines (gzipped if named ``.gz``) or of one JSON array, its rows
    with ``instruction`` or with ``messages`` of one user turn, and optionally ``id`` and
    ``dataset``; or a data set of the hub, ``owner/name`` or ``owner/name:file.json``.
    """
    prompts: dict[str, SetPrompt] = {}
    for number, (line, row) in enumerate(_rows(source)):
        text = question_of(row, f"{line}: no 'instruction'")
        name = str(number if row.get("id") is None else row["id"])
        if name in prompts:
            raise InputError(f"{source}: id {name} occurs twice")
        dataset = str(next((row[key] for key in SOURCES if row.get(key)), ""))
        prompts[name] = SetPrompt(name, text, dataset)
    if not prompts:
        raise InputError(f"{source} has no instructions")
    return list(prompts.values())[:limit]


def read_reference(source: str) -> tuple[str, dict[str, str]]:
    """Read reference answers in AlpacaEval's form: their name, and they by instruction.

    The name is the rows' ``generator``, or else the file's. Files do not agree in their ids.
    """
    outputs, names = dict[str, str](), set[str]()
    stem = re.sub(r"(\.json|\.jsonl)?(\.gz)?$", "", Path(source).name).removeprefix("outputs_")
    for line, row in _rows(source):
        if not isinstance(row.get("output"), str):
            raise InputError(f"{line}: no 'instruction' with an 'output'")
        outputs[question_of(row, f"{line}: no 'instruction'")] = row["output"]
        names.add(str(row.get("generator") or stem))
    if len(names) != 1:
        raise InputError(f"{source} has answers of {len(names)} generators; one is needed")
    return names.pop(), outputs


def _rows(source: str) -> Iterator[tuple[str, Row]]:
    path = Path(source)
    if not path.exists() and _HUB_NAME.fullmatch(source):
        path = _from_hub(source)
    if path.suffix != ".json":
        yield from ((f"{source}:{number}", row) for number, row in read_objects(path))
        return
    try:
        rows = parse_unique("".join(read_lines(path)))
    except ValueError as exc:
        raise InputError(f"{path} cannot be read: {exc}") from exc
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path} is no array of objects")
    yield from ((f"{source}[{number}]", row) for number, row in enumerate(rows))


def _from_hub(source: str) -> Path:
    try:
        from huggingface_hub import hf_hub_download
    except ModuleNotFoundError as exc:
        raise MissingExtraError(f"reading {source} from the hub", "evaluate") from exc
    name, _, file = source.partition(":")
    try:
        return Path(hf_hub_download(name, file or HUB_FILE, repo_type="dataset"))
    except Exception as exc:  # the hub has many ways to say no
        reason = str(exc).strip().partition("\n")[0]
        problem = f"no such file, and the hub gives no {file or HUB_FILE} of it: {reason}"
        hint = "name a file, or owner/name:file.json"
        raise InputError(f"{source}: {problem}", hint=hint) from exc
