"""Compare two models' stored answers by blind reading or by a judge: write pairs, count verdicts.

``show`` writes the pairs of a folder of ``pasta evaluate instructions`` in batches: the prompt and
two answers, without tags or names. A pair stands in two batches, once in each order. All batches
of one order hold each pair once, so that no reader need see a pair twice. A reader writes a file
``NAME.verdicts`` for ``NAME.txt`` with a line ``NUMBER 1``, ``NUMBER 2`` or ``NUMBER =`` for each
pair. ``count`` reads these files and writes a row for each verdict. ``figures`` prints win rates
from the rows: the share of pairs in which the taught model's answer is preferred, ties by half.

``judge`` writes such rows of a judge in this process, or of the rule that the shorter answer wins
(kind ``shorter``). ``figures ROWS --readers OTHERS`` prints how often rows agree with others.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any, NamedTuple

from pasta_lab.evaluate.agreement import cohens_kappa
from pasta_lm.errors import InputError, PastaError
from pasta_lm.journal import read_rows, write_rows, write_whole
from pasta_lm.learn.judge.judge import Comparison, Verdict, first_wins_of, verdict_of
from pasta_lm.learn.train.judging import JudgeConfig, judge_of
from pasta_lm.measure.instructions import read_packed
from pasta_lm.measure.intervals import as_dict, mean
from pasta_lm.measure.prompt_sets import SetFiles, read_sets
from pasta_lm.strategies import pasta, sequential

ORDERS = {"a": (pasta.NAME, sequential.NAME), "b": (sequential.NAME, pasta.NAME)}
CHOICES = ("1", "2", "=")
KEY, EQUAL, SHORTER = "key.json", "equal", "shorter"
TIE = 0.5


class Pair(NamedTuple):
    """A prompt, and the text of each system's answer to it."""

    id: str
    prompt: str
    texts: dict[str, str]


def pairs_of(folder: Path, files: SetFiles, limit: int) -> list[Pair]:
    """Return the pairs of a run, in the order of the sets' prompts."""
    texts: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for row in read_packed(folder / "scored.jsonl.gz"):
        texts[row["prompt_id"]][row["system"]] = row["text"]
    prompts = {one.id: one.text for one in read_sets(files, limit)}
    return [Pair(id, prompt, texts[id]) for id, prompt in prompts.items() if id in texts]


def write_batches(pairs: list[Pair], out: Path, size: int, seed: int) -> None:
    """Write the batches of both orders, drawn by chance, and the key to them.

    Equal answers are read by nobody: they stand in the key alone, and are ties.
    """
    differ = [one for one in pairs if len(set(one.texts.values())) > 1]
    Random(seed).shuffle(differ)
    key: dict[str, list[Any]] = {EQUAL: [one.id for one in pairs if one not in differ]}
    for order, systems in ORDERS.items():
        for start in range(0, len(differ), size):
            name = f"{order}-{start // size + 1:02d}"
            rows, lines = [], []
            for number, pair in enumerate(differ[start : start + size], start=1):
                # No system is always first: a lean towards a place is no lean towards a system.
                first, second = systems if number % 2 else systems[::-1]
                rows.append([pair.id, first])
                lines += [f"##### {number}", f"--- PROMPT\n{pair.prompt}"]
                lines += [
                    f"--- ANSWER 1\n{pair.texts[first]}",
                    f"--- ANSWER 2\n{pair.texts[second]}",
                ]
            key[name] = rows
            write_whole(out / f"{name}.txt", ("\n".join(lines) + "\n").encode())
    write_whole(out / KEY, json.dumps(key).encode())


def verdicts(out: Path, reader: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each verdict.

    Raises:
        InputError: a line is no verdict, or a pair has none.
    """
    key = json.loads((out / KEY).read_text("utf-8"))
    for id in key.pop(EQUAL):
        yield {"id": f"{EQUAL}/{id}", "prompt_id": id, "verdict": "=", "reader": EQUAL}
    for name, pairs in key.items():
        path = out / f"{name}.verdicts"
        found = {}
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
            words = line.split()
            if len(words) != 2 or not words[0].isdigit() or words[1] not in CHOICES:
                raise InputError(f"{path}:{number}: not a verdict: {line!r}", hint="NUMBER 1|2|=")
            found[int(words[0])] = words[1]
        if set(found) != set(range(1, len(pairs) + 1)):
            raise InputError(f"{path} has {len(found)} verdicts on {len(pairs)} pairs")
        for number, (id, first) in enumerate(pairs, start=1):
            row = {"id": f"{name}/{id}", "prompt_id": id, "first": first, "verdict": found[number]}
            yield row | {"reader": reader}


def judged(pairs: list[Pair], config: dict[str, Any], out: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for each pair on which a judge has a verdict; equal answers are ties.

    Args:
        pairs: Both answers are treated alike.
        config: The judge as ``[judge]`` of a recipe, or the kind ``shorter``.
        out: The judge's stored replies lie beside it.
    """
    asked = [
        Comparison(one.id, one.prompt, one.texts[pasta.NAME], one.texts[sequential.NAME])
        for one in pairs
    ]
    found: Sequence[Verdict | None]
    if config["kind"] == SHORTER:
        name, found = SHORTER, [verdict_of(_shorter(one)) for one in asked]
    else:
        judge = judge_of(JudgeConfig(**config), str(out.parent), [])
        found, name = judge.compare(asked), getattr(judge, "name", config["kind"])
    for one, verdict in zip(asked, found, strict=True):
        if verdict is not None:
            wins = first_wins_of(verdict)
            said = "=" if wins == TIE else CHOICES[wins < TIE]
            row = {"id": one.prompt_id, "prompt_id": one.prompt_id, "first": pasta.NAME}
            yield row | {"verdict": said, "first_wins": round(wins, 4), "reader": name}


def _shorter(one: Comparison) -> float:
    """Return the verdict of who prefers the shorter answer, in characters."""
    first, second = len(one.first), len(one.second)
    return TIE if first == second else float(first < second)


def preference(row: dict[str, Any]) -> float:
    """Return 1 if the taught model's answer is preferred, 0 if the baseline's, 0.5 for a tie."""
    if row["verdict"] == "=":
        return TIE
    return float((row["verdict"] == "1") == (row["first"] == pasta.NAME))


def packed(rows: list[dict[str, Any]], path: Path) -> None:
    """Write rows gzipped; the same rows give the same bytes."""
    text = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
    write_whole(path, gzip.compress(text.encode(), mtime=0))


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file of verdicts, gzipped or not."""
    return list(read_packed(path) if path.suffix == ".gz" else read_rows(path))


def preferences(rows: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Return the preferences on each prompt, by its id."""
    read: defaultdict[str, list[float]] = defaultdict(list)
    for row in rows:
        read[row["prompt_id"]].append(preference(row))
    return read


def agreement(rows: list[dict[str, Any]], others: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how often rows prefer what other rows do, over the pairs on which those decided.

    Readers decided where the mean of their preferences is no tie. A tie of the rows counts half;
    Cohen's kappa leaves it out.
    """
    first, second = preferences(rows), preferences(others)
    means = [(fmean(first[id]), fmean(second[id])) for id in second if id in first]
    decided = [(ours, theirs > TIE) for ours, theirs in means if theirs != TIE]
    same = [TIE if ours == TIE else float((ours > TIE) == theirs) for ours, theirs in decided]
    return {
        "num_pairs": len(decided),
        "same": as_dict(mean(same)),
        "kappa": cohens_kappa([(ours > TIE, theirs) for ours, theirs in decided if ours != TIE]),
    }


def figures(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return win rates with intervals over prompts, of all sets together and of each.

    ``order_agreement`` is the share of pairs whose two readings do not prefer different answers.
    """
    read = preferences(rows)
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for id in read:
        groups["all"].append(id)
        groups[id.split("/")[0]].append(id)
    return {
        name: {
            "num_pairs": len(ids),
            "win_rate": as_dict(mean([fmean(read[id]) for id in ids])),
            "ties": fmean(preference == TIE for id in ids for preference in read[id]),
            "order_agreement": fmean(set(read[id]) != {0.0, 1.0} for id in ids),
        }
        for name, ids in groups.items()
    }


def main() -> int:
    """Run one of the commands; 1 if something is wrong with the files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("command", choices=("show", "count", "judge", "figures"))
    parser.add_argument("rows", type=Path, help="folder of a run (show, judge), or file of rows")
    parser.add_argument(
        "--out", type=Path, help="folder of batches (show, count); FILE.jsonl.gz (judge)"
    )
    parser.add_argument("--judge", help="JSON: the keys of [judge] (judge)")
    parser.add_argument("--readers", type=Path, help="rows to hold these against (figures)")
    parser.add_argument("--reader", help="who read: a person, or a model with its maker (count)")
    parser.add_argument("--sets", default="{}", help="JSON: the files of the sets (show, judge)")
    parser.add_argument("--limit", type=int, default=80, help="prompts of each set")
    parser.add_argument("--size", type=int, default=40, help="pairs in a batch")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    try:
        if given.command in {"show", "judge"}:
            files = SetFiles(**json.loads(given.sets))
            pairs = pairs_of(given.rows, files, given.limit)
            if given.command == "show":
                write_batches(pairs, given.out, given.size, given.seed)
            else:
                packed(list(judged(pairs, json.loads(given.judge), given.out)), given.out)
            return 0
        if given.command == "count":
            write_rows(given.rows, list(verdicts(given.out, given.reader)))
        rows = rows_of(given.rows)
        found = agreement(rows, rows_of(given.readers)) if given.readers else figures(rows)
        print(json.dumps(found, indent=1))
    except (PastaError, OSError) as exc:
        print(f"blind_reading.py: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
