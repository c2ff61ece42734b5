"""Record the behaviour that a refactoring must preserve, and compare two recordings.

``frozen.py record FOLDER`` runs the oracle models, the verbs and the encoder of this checkout and
writes one JSON file each. ``frozen.py compare BEFORE AFTER`` exits with 1 and names every value
that differs. Wall-clock times, machines and paths are left out; everything else must be equal.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "data"
PATHS = [str(ROOT / "src"), str(ROOT / "lab"), str(ROOT)]
sys.path[:0] = PATHS
os.environ["PYTHONPATH"] = os.pathsep.join(PATHS)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the order of a sum depends on it

CLOCKS = ("wall", "realised", "efficiency", "per_s", "seconds", "of_perfect_forks")
PLACES = {"provenance", "commit", "machine", "path", "created", "date"}
LOGIT_TOLERANCE = 1e-5
NUM_STARTER_ROWS, NUM_REPLAYED, NUM_TASKS = 100, 20, 84
TEXTS = {
    "plain": "Nothing is marked.",
    "written": 'A <promise topic="x y" tokens="1"/><async>one two three four five</async><sync/> b',
    "no close": 'A <promise topic="x" tokens="1"/><async>one two',
    "stray close": "A </async> b",
    "early sync": "A<sync/>B",
    "wrong length": 'A <promise topic="x" tokens="9"/><async>one</async>',
    "long topic": '<promise topic="one two three four five" tokens="1"/><async>a</async>',
    "nested": '<promise topic="x" tokens="1"/><async>a <promise topic="y" tokens="1"/></async>',
    "lone promise": '<promise topic="x" tokens="1"/> and on',
    "escaped": "a &lt;sync/> and a bare < sign\n\nsecond paragraph \u00e9\U0001f35d",
}


def _pasta(
    *arguments: object, module: str = "pasta_lm.cli", stdin: str = "", codes: tuple[int, ...] = (0,)
) -> str:
    """Run one command line and return what it wrote to standard output."""
    line = [sys.executable, "-c", f"from {module} import main; main()", *map(str, arguments)]
    done = subprocess.run(line, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode not in codes:
        raise SystemExit(f"{arguments}: exit {done.returncode}\n{done.stderr}")
    return done.stdout


def logits() -> dict[str, Any]:
    """Return sums of the logits met while random programs are decoded, for every architecture."""
    import torch

    from pasta_lm.interpreter import PositionStrategy
    from tests.architectures import ARCHITECTURES, loaded
    from tests.programs import random_program

    torch.set_num_threads(1)
    found = {}
    for name, architecture in ARCHITECTURES.items():
        if architecture.tokenizer == "unigram":
            continue  # its training breaks ties by chance, so programs differ between processes
        model = loaded(name)
        rng = random.Random(name)
        for positions in PositionStrategy:
            programs = [random_program(rng, model.vocabulary) for _ in range(3)]
            if name not in {"phi3", "gpt_oss"} or positions is not PositionStrategy.ROTATE:
                found[f"{name}/{positions.value}"] = _logits_of(model, programs, positions)
    return found


def _logits_of(model: Any, programs: list[Any], positions: Any) -> dict[str, Any] | str:
    import torch

    from pasta_lm.engines.request import Request, SamplingParams
    from tests.fakes.recording_engine import Recording

    requests = [
        Request(
            prompt=program.prompt,
            forced=program.answer,
            positions=positions,
            params=SamplingParams(max_tokens=program.answer.num_tokens + 1),
        )
        for program in programs
    ]
    try:
        seen = [response for [response] in Recording(model).run(requests)]
    except Exception as error:
        return str(error)
    every = torch.cat([torch.stack(response.logits) for response in seen]).double()
    return {
        "shape": list(every.shape),
        "slots": [response.slots for response in seen],
        "means": every.mean(1).tolist(),
        "largest": every.max(1).values.tolist(),
        "chosen": every.argmax(1).tolist(),
    }


def tasks() -> dict[str, Any]:
    """Return the report of ``pasta-lab evaluate tasks`` on development prompts."""
    flags = ("--split", "dev", "--num-prompts", NUM_TASKS, "--num-timed", 1, "--json")
    return dict(json.loads(_pasta("evaluate", "tasks", *flags, module="pasta_lab.cli.app")))


def replay() -> dict[str, Any]:
    """Return the report of replaying annotated answers with random weights."""
    answers = SHARED / "annotated" / "gemma-7b-it.jsonl.gz"
    shape = ROOT / "lab" / "benchmarks" / "shapes" / "llama-6m.json"
    options = ("--random", shape, "--limit", NUM_REPLAYED, "--threads", 1)
    return dict(json.loads(_pasta("replay", answers, *options, "--json")))


def win_rates() -> dict[str, Any]:
    """Return AlpacaEval's win rates of the ten models with stored judgements."""
    folder = SHARED / "alpaca_eval"
    flags = ("--annotations", folder / "annotations_weighted_gpt4_turbo.jsonl.gz")
    flags += ("--difficulty", folder / "instruction_difficulty.csv")
    flags += ("--gamed", folder / "df_gamed_surrogate.csv")
    return dict(json.loads(_pasta("evaluate", "lc-winrate", *flags, "--json")))


def annotation() -> dict[str, Any]:
    """Return what a run against the scripted teacher keeps and rejects."""
    from pasta_lm import parse
    from tests.fakes.scripted_server import ScriptedServer
    from tests.fakes.scripted_teacher import teacher_by_rule

    starter = ROOT / "corpora" / "starter" / "starter.jsonl"
    rows = [json.loads(line) for line in starter.read_text("utf-8").splitlines()]
    answers = [
        {
            "id": row["id"],
            "instruction": row["messages"][0]["content"],
            "output": parse(row["response"]).plain_text,
        }
        for row in rows[:NUM_STARTER_ROWS]
    ]
    with tempfile.TemporaryDirectory() as name, ScriptedServer(teacher_by_rule(0.2, 0.1)) as server:
        folder = Path(name)
        (folder / "source.jsonl").write_text("".join(json.dumps(row) + "\n" for row in answers))
        recipe = (
            f'[source]\nfile = "{folder}/source.jsonl"\n[output]\nfolder = "{folder}/out"\n'
            f'[teacher]\nbase_url = "{server.base_url}"\nmodel = "scripted"\n'
        )
        (folder / "recipe.toml").write_text(recipe)
        _pasta("annotate", folder / "recipe.toml")
        return {
            file: [json.loads(line) for line in (folder / "out" / file).read_text().splitlines()]
            for file in ("annotated.jsonl", "failed.jsonl")
        }


def encoded() -> dict[str, Any]:
    """Return the encoded form of starter rows under every position strategy that trains."""
    from pasta_lm.interpreter import PositionStrategy
    from pasta_lm.language.tags import PIECES
    from pasta_lm.learn.data.encode import encode_example
    from pasta_lm.models.annotated import read_records
    from pasta_lm.models.vocabulary import Vocabulary
    from tests.small_tokenizers import add_markers, byte_level

    tokenizer = byte_level()
    vocabulary = Vocabulary(tokenizer, add_markers(tokenizer, PIECES))
    records = islice(read_records(ROOT / "corpora" / "starter" / "starter.jsonl"), NUM_STARTER_ROWS)
    found = {}
    for record in records:
        for strategy in (s for s in PositionStrategy if s is not PositionStrategy.ROTATE):
            one = encode_example(record, vocabulary, tokenizer.eos_token_id, strategy)
            parts = (one.token_ids, one.labels, one.positions, one.owners, one.row_of, one.rows)
            text = json.dumps([[list(row) for row in one.rows or ()], *map(list, parts[:5])])
            name = f"{record.id}/{strategy.value}"
            found[name] = hashlib.sha256(text.encode()).hexdigest()
    return found


def checks() -> dict[str, Any]:
    """Return the diagnostics of ``check`` for a table of texts."""
    return {
        name: json.loads(_pasta("check", "-", "--format", "json", stdin=text, codes=(0, 3)))
        for name, text in TEXTS.items()
    }


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    part.__name__: part for part in (checks, encoded, win_rates, annotation, replay, logits, tasks)
}


def record(folder: Path, names: list[str]) -> None:
    """Write the recording of each part."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or PARTS:
        with gzip.open(folder / f"{name}.json.gz", "wt", encoding="utf-8") as file:
            json.dump(PARTS[name](), file, indent=0, sort_keys=True)
        print(f"{name}: recorded", flush=True)


def differences(before: Any, after: Any, place: str = "") -> Iterator[str]:
    """Yield every difference of two recordings, except times and machines."""
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _different_keys(before, after, place)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, pair in enumerate(zip(before, after, strict=True)):
            yield from differences(*pair, f"{place}[{index}]")
    elif isinstance(before, float) and isinstance(after, float):
        if abs(before - after) > LOGIT_TOLERANCE * max(1.0, abs(before)):
            yield f"{place}: {before} before, {after} after"
    elif before != after:
        yield f"{place}: {str(before)[:80]!r} before, {str(after)[:80]!r} after"


def _different_keys(before: dict[str, Any], after: dict[str, Any], place: str) -> Iterator[str]:
    for key in sorted({*before, *after}):
        if key in PLACES or any(word in key for word in CLOCKS) or key.endswith(("_s", "_ms")):
            continue
        if key in before and key in after:
            yield from differences(before[key], after[key], f"{place}/{key}")
        else:
            yield f"{place}/{key}: only {'before' if key in before else 'after'}"


def compare(before: Path, after: Path, names: list[str]) -> int:
    """Print the differences; return 1 if there are any."""
    num_differences = 0
    for name in names or PARTS:
        parts = []
        for folder in (before, after):
            with gzip.open(folder / f"{name}.json.gz", "rt", encoding="utf-8") as file:
                parts.append(json.load(file))
        found = list(differences(*parts, name))
        num_differences += len(found)
        print(f"{name}: {'equal' if not found else f'{len(found)} differences'}")
        for line in found[:20]:
            print(f"    {line}")
    return int(num_differences > 0)


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=("record", "compare"))
    parser.add_argument("folders", type=Path, nargs="+", help="FOLDER, or BEFORE AFTER")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=[], metavar="PART")
    arguments = parser.parse_args()
    if arguments.verb == "compare":
        before, after = arguments.folders
        return compare(before, after, arguments.only)
    record(arguments.folders[0], arguments.only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
