"""Annotate answers by reading: write batches for readers, build annotated rows from their marks.

``show`` writes the answers with their units numbered, some to a file. ``apply`` reads the marks
(``annotate/marks.py`` has their form), names every bad one by file and line, writes the rows, and
beside them ``OUT.counts.json``: how many answers were left out, and why. ``join`` makes one data
set of several, with one answer to an instruction.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pasta_lm.errors import InputError, PastaError
from pasta_lm.journal import read_lines, write_rows
from pasta_lm.language.tags import ASYNC_OPEN
from pasta_lm.learn.annotate.marks import Marks, marked, parse_marks, shown
from pasta_lm.learn.annotate.own_answers import USABLE, usable_answers

COUNTS = ".counts.json"
SOURCE = "pasta-lm own answers"
LICENCE = "Apache-2.0"
PROVENANCE = (
    "instruction written for pasta-lm; answer by SmolLM2-135M-Instruct; annotated by a language "
    "model that read both; facts not looked up"
)
TOKENIZER = "HuggingFaceTB/SmolLM2-135M-Instruct"


def read(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file of JSON lines; the last one may still be being written."""
    return [json.loads(line) for line in read_lines(path) if line.endswith("\n")]


def read_instructions(path: Path) -> dict[str, dict[str, Any]]:
    """Return the instructions by id, without those that ``held_out.txt`` beside them names."""
    held_out = path.with_name("held_out.txt")
    hidden = set(held_out.read_text("utf-8").split()) if held_out.exists() else set()
    return {row["id"]: row for row in read(path) if row["id"] not in hidden}


def read_answers(path: Path, instructions: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the answers to these instructions."""
    return [row for row in read(path) if row["id"] in instructions]


def show(answers: Path, instructions: Path, folder: Path, num_rows: int, rest: bool) -> None:
    """Write batches of usable answers that no batch of the folder holds yet, whole batches only."""
    rows = read_instructions(instructions)
    asked = {name: row["instruction"] for name, row in rows.items()}
    folder.mkdir(parents=True, exist_ok=True)
    older = sorted(folder.glob("*.txt"))
    seen = {name for file in older for name in re.findall(r"^### (\S+)$", file.read_text(), re.M)}
    kept, reasons = usable_answers(read_answers(answers, rows), asked)
    new = [row for row in kept if row["id"] not in seen]
    print(f"{reasons.total()} answers: {_counts(reasons)}", file=sys.stderr)
    batches = (new[begin : begin + num_rows] for begin in range(0, len(new), num_rows))
    for number, batch in enumerate(batches, start=len(older) + 1):
        if len(batch) < num_rows and not rest:
            break
        texts = (f"### {row['id']}\n{asked[row['id']]}\n{shown(row['answer'])}\n" for row in batch)
        path = folder / f"{number:03}.txt"
        path.write_text("\n".join(texts), encoding="utf-8")
        print(path)


def apply(
    marks: Path,
    answers: Path,
    instructions: Path,
    out: Path,
    count: Callable[[str], int],
    note: str = "",
) -> int:
    """Write the annotated rows in the order of the instructions; return how many marks are bad.

    Marks of answers that the rules leave out count for nothing.
    """
    asked = read_instructions(instructions)
    sampled = read_answers(answers, asked)
    known = {row["id"]: row["answer"] for row in sampled}
    kept, reasons = usable_answers(
        sampled, {name: one["instruction"] for name, one in asked.items()}
    )
    usable = {row["id"] for row in kept}
    rows: dict[str, dict[str, Any]] = {}
    skipped, num_bad, seen = Counter[str](), 0, dict[str, str]()
    for place, line in _lines(marks):
        try:
            one = parse_marks(line)
            _check_id(one.id, known, seen)
            seen[one.id] = place
            row = None if one.skip else _row(asked[one.id], known[one.id], one, count, note)
        except PastaError as error:
            num_bad += 1
            print(f"{place}: {error}", file=sys.stderr)
            continue
        if one.id in usable and row is None:
            skipped[str(one.skip)] += 1
        elif one.id in usable and row is not None:
            rows[one.id] = row
    counts = {
        "sampled": len(sampled),
        "rules": {name: num for name, num in reasons.most_common() if name != USABLE},
        "reader": dict(skipped.most_common()),
        "not_read": len(usable) - len(rows) - skipped.total(),
        "twice": 0,
    }
    _write(out, [rows[name] for name in asked if name in rows], counts)
    print(f"{len(rows)} rows, {num_bad} bad marks; skipped: {_counts(skipped)}", file=sys.stderr)
    return num_bad


def join(out: Path, parts: Sequence[Path]) -> None:
    """Write one row for each instruction: the first that has blocks, otherwise the first."""
    rows: dict[str, dict[str, Any]] = {}
    every = [json.loads(path.with_suffix(COUNTS).read_text("utf-8")) for path in parts]
    counts: dict[str, Any] = {}
    for name in ("sampled", "not_read", "twice"):
        counts[name] = sum(one[name] for one in every)
    for name in ("rules", "reader"):
        total = sum((Counter(one[name]) for one in every), Counter[str]())
        counts[name] = dict(total.most_common())
    for row in (row for path in parts for row in read(path)):
        other = rows.setdefault(row["id"], row)
        if other is not row:
            counts["twice"] += 1
            if ASYNC_OPEN in row["response"] and ASYNC_OPEN not in other["response"]:
                rows[row["id"]] = row
    _write(out, [rows[name] for name in sorted(rows)], counts)


def _write(out: Path, rows: Sequence[dict[str, Any]], counts: dict[str, Any]) -> None:
    write_rows(out, rows)
    out.with_suffix(COUNTS).write_text(json.dumps(counts, indent=1) + "\n", "utf-8")


def missing(batch: Path, marks: Path) -> list[str]:
    """Return the answers of a batch (or of a folder of them) that no line of the marks names."""
    files = sorted(batch.glob("*.txt")) if batch.is_dir() else [batch]
    named = {line.partition(":")[0].strip() for _, line in _lines(marks)}
    shown_ids = (re.findall(r"^### (\S+)$", file.read_text("utf-8"), re.M) for file in files)
    return [name for ids in shown_ids for name in ids if name not in named]


def _check_id(name: str, known: Collection[str], seen: Mapping[str, str]) -> None:
    if name not in known:
        raise InputError(f"{name} is not among the answers, or is held out")
    if name in seen:
        raise InputError(f"{name} was marked before, in {seen[name]}")


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common()) or "none"


def _lines(marks: Path) -> Iterator[tuple[str, str]]:
    files = sorted(marks.glob("*.txt")) if marks.is_dir() else [marks]
    for file in files:
        for number, line in enumerate(read_lines(file), start=1):
            if line.strip():
                yield f"{file}:{number}", line


def _row(
    asked: dict[str, Any], text: str, marks: Marks, count: Callable[[str], int], note: str
) -> dict[str, Any]:
    document = marked(text, marks).with_lengths(count)
    assert document.plain_text == text
    return {
        "id": asked["id"],
        "messages": [{"role": "user", "content": asked["instruction"]}],
        "response": document.written(),
        "shape": asked["shape"],
        "parts": asked["parts"],
        "source": SOURCE,
        "licence": LICENCE,
        "provenance": "; ".join(filter(None, (PROVENANCE, note))),
    }


def token_counter(tokenizer: str) -> Callable[[str], int]:
    """Return a function that counts the tokens of a block as it is written."""
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(tokenizer)
    return lambda text: len(loaded.encode(text, add_special_tokens=False))


def main() -> int:
    """Run one of the verbs; return 1 if marks are bad or missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("show")
    for name in ("answers", "instructions", "folder"):
        verb.add_argument(name, type=Path)
    verb.add_argument("--rows", type=int, default=60, help="answers in a batch")
    verb.add_argument("--rest", action="store_true", help="also write a batch that is not full")
    verb = verbs.add_parser("apply")
    for name in ("marks", "answers", "instructions", "out"):
        verb.add_argument(name, type=Path)
    verb.add_argument("--batch", type=Path, help="name the answers of it that have no marks")
    verb.add_argument("--tokenizer", default=TOKENIZER, help="counts the lengths of blocks")
    verb.add_argument("--note", default="", help="added to the provenance of the rows")
    verb = verbs.add_parser("join")
    verb.add_argument("out", type=Path)
    verb.add_argument("parts", type=Path, nargs="+", help="files that 'apply' wrote")
    arguments = parser.parse_args()
    if arguments.verb == "show":
        show(
            arguments.answers,
            arguments.instructions,
            arguments.folder,
            arguments.rows,
            arguments.rest,
        )
        return 0
    if arguments.verb == "join":
        join(arguments.out, arguments.parts)
        return 0
    files = (arguments.marks, arguments.answers, arguments.instructions, arguments.out)
    num_bad = apply(*files, token_counter(arguments.tokenizer), arguments.note)
    absent = missing(arguments.batch, arguments.marks) if arguments.batch else []
    for name in absent:
        print(f"{arguments.batch}: {name} has no marks", file=sys.stderr)
    return int(bool(num_bad or absent))


if __name__ == "__main__":
    sys.exit(main())
