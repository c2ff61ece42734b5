r"""Compare a stock server with the local engine: tokens first, then what forks cost under load.

    PYTHONPATH=. python benchmarks/stock_servers.py MODEL --engine URL --out OUT.json \
        --answers FOLDER [--prompts 100] [--loads 1,4,16,32]

MODEL is a folder of ``pasta export --merged --dtype float32``; the server holds the same weights.
Requests have positions ``continue`` and join ``recompute``, whatever the model was trained with.
Answers are kept in FOLDER, so that a run that was stopped goes on. ``scripts/vllm-server`` and
``scripts/llama-server`` install, start and stop the servers.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import httpx2 as httpx
import torch
from transformers import AutoModelForCausalLM

from benchmarks.server_load import at_load, brief, costs_ms, measured_by
from benchmarks.token_agreement import Choice, Place, agreement, choices
from pasta_lm.engines.request import Answer, Request, SamplingParams
from pasta_lm.engines.servers.dialects import VLLM
from pasta_lm.interpreter import Join, PositionStrategy
from pasta_lm.machine import describe_machine
from pasta_lm.models.vocabulary import Vocabulary
from pasta_lm.strategies.model import Pasta
from tests.witness import MARGIN

INSTRUCTIONS = Path("corpora/instructions")
END = -1
"""Main's choice to end, as a token."""


class Engine(Protocol):
    """The local engine, or the one in front of servers."""

    def generate(self, requests: Sequence[Request]) -> list[list[Answer]]:
        """Decode requests together."""


def instructions(number: int) -> dict[str, str]:
    """Return the first held-out instructions by id; those that ask for several parts first."""
    wanted = set((INSTRUCTIONS / "held_out.txt").read_text().split())
    lines = (INSTRUCTIONS / "instructions.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["id"] in wanted]
    rows.sort(key=lambda row: row["parts"] != "several")
    return {row["id"]: row["instruction"] for row in rows[:number]}


# --- tokens


def decoded(
    make_engine: Callable[[], Engine], requests: dict[str, Request], file: Path, at_once: int
) -> dict[str, dict[str, Any]]:
    """Return the tokens of each answer by id; those in the file are not decoded again."""
    found = {}
    if file.exists():
        found = {row["id"]: row for row in map(json.loads, file.read_text().splitlines())}
    missing = [name for name in requests if name not in found]
    engine = make_engine() if missing else None
    for start in range(0, len(missing), at_once):
        assert engine is not None
        names = missing[start : start + at_once]
        answers = engine.generate([requests[name] for name in names])
        with file.open("a") as out:
            for name, (answer,) in zip(names, answers, strict=True):
                found[name] = {"id": name, **_row(answer)}
                out.write(json.dumps(found[name]) + "\n")
        print(f"{file.name}: {len(found)} of {len(requests)}", flush=True)
    return {name: found[name] for name in requests}


def _row(answer: Answer) -> dict[str, Any]:
    trace = answer.trace
    threads = [[token.token for token in trace.tokens_of(one.id)] for one in trace.threads]
    if trace.threads[0].finish_reason == "stop":
        threads[0].append(END)
    return {
        "threads": threads,
        "finish_reason": answer.finish_reason,
        "num_syncs": len(trace.syncs),
        "num_recomputed": trace.num_recomputed,
        "num_illegal": trace.num_illegal,
        "text": answer.text,
    }


def compare_tokens(
    vocabulary: Vocabulary,
    requests: dict[str, Request],
    ours: dict[str, dict[str, Any]],
    theirs: dict[str, dict[str, Any]],
    margin: Callable[[Choice, Choice], float],
) -> dict[str, Any]:
    """Return how many choices agree, and each that does not with the margin that it had."""
    num_choices, num_same, differing = 0, 0, []
    whole = [name for name in requests if _are_whole(ours[name], theirs[name])]
    for name, request in requests.items():
        both = [choices(vocabulary, request.prompt, one[name]["threads"]) for one in (ours, theirs)]
        found = agreement(*both)
        num_choices += found.num_compared
        num_same += found.is_whole and name in whole
        for place, pair in found.differing.items():
            differing.append(_difference(name, place, pair, margin(*pair)))
    ties = [one for one in differing if one["margin"] < MARGIN]
    synced = [name for name in requests if ours[name]["num_syncs"] == theirs[name]["num_syncs"]]
    return {
        "answers": len(requests),
        "answers_that_fork": sum(len(one["threads"]) > 1 for one in ours.values()),
        "answers_that_sync": sum(one["num_syncs"] > 0 for one in ours.values()),
        "syncs": sum(one["num_syncs"] for one in ours.values()),
        "answers_compared_whole": len(whole),  # the limit of tokens cut the others where it fell
        "same_of_these": num_same,
        "recomputed": sum(theirs[name]["num_recomputed"] for name in synced),
        "recomputed_locally": sum(ours[name]["num_recomputed"] for name in synced),
        "choices": num_choices,
        "bound_of_ties": MARGIN,
        "ties": len(ties),
        "differences": len(differing) - len(ties),
        "differing": differing,
    }


def _are_whole(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    """Return whether both ended by themselves, or had one thread, cut at the same place."""
    if ours["finish_reason"] == theirs["finish_reason"] == "stop":
        return True
    lengths = [[len(thread) for thread in one["threads"]] for one in (ours, theirs)]
    return lengths[0] == lengths[1] and len(lengths[0]) == 1


def _difference(name: str, place: Place, pair: tuple[Choice, Choice], gap: float) -> dict[str, Any]:
    ours, theirs = pair
    tokens = {"local": ours.token, "server": theirs.token}
    return {"id": name, "thread": place[0], "index": place[1], **tokens, "margin": gap}


def margin_by(folder: str, eos_ids: Sequence[int]) -> Callable[[Choice, Choice], float]:
    """Return what computes the difference of two tokens' logits in a plain pass of transformers."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def margin(ours: Choice, theirs: Choice) -> float:
        with torch.inference_mode():
            logits = model(torch.tensor([ours.context])).logits[0, -1]
        ends = logits[list(eos_ids)].max()
        values = [ends if one.token == END else logits[one.token] for one in (ours, theirs)]
        return float(abs(values[0] - values[1]))

    return margin


def same_ids(url: str, dialect: str, model: str, vocabulary: Vocabulary) -> dict[str, Any]:
    """Let the server tokenise every tag piece as text; count those with our id."""
    found = 0
    for piece, token in vocabulary.piece_ids.items():
        body: dict[str, Any] = {"content": piece, "parse_special": True, "add_special": False}
        if dialect == VLLM:
            body = {"model": model, "prompt": piece, "add_special_tokens": False}
        reply = httpx.post(f"{url}/tokenize", json=body, timeout=60).json()
        found += reply["tokens"] == [token]
    return {"pieces": len(vocabulary.piece_ids), "with_our_id": found}


# --- all


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--engine", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--answers", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--loads", default="")
    parser.add_argument("--load-tokens", type=int, default=128)
    parser.add_argument("--rows", default="1,2,4,8,16,32", help="those whose step is measured")
    parser.add_argument("--load-s", type=float, default=120.0, help="no new turn of a load after")
    parser.add_argument("--processes", default="", help="those of the server whose time counts")
    parser.add_argument("--server", default="unknown", help="the server's version, for the record")
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.answers.mkdir(parents=True, exist_ok=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)

    remote = Pasta.from_servers(args.engine, args.model)
    engine: Any = remote.engine
    params = SamplingParams(max_tokens=args.max_tokens)
    prompts = instructions(args.prompts)
    requests = {
        name: replace(
            remote.request(prompt, params, positions="continue"),
            positions=PositionStrategy.CONTINUE,
            join=Join.RECOMPUTE,
        )
        for name, prompt in prompts.items()
    }
    theirs = decoded(lambda: engine, requests, args.answers / "server.jsonl", args.at_once)
    dialect = engine.servers[0].dialect.name
    ours = decoded(
        lambda: Pasta.from_pretrained(args.model, dtype="float32").engine,
        requests,
        args.answers.parent / "local.jsonl",
        args.at_once,
    )
    vocabulary, eos_ids = engine.loaded.vocabulary, sorted(engine.loaded.eos_ids)
    margin = margin_by(args.model, eos_ids)
    found = {
        "kind": "generated",
        "server": args.server,
        "dialect": dialect,
        "model": engine.loaded.name,
        "trained_positions": str(engine.loaded.positions),
        "trained_join": str(engine.loaded.join),
        "max_tokens": args.max_tokens,
        "machine": describe_machine(),
        "tokenizer": same_ids(engine.servers[0].url, dialect, engine.servers[0].model, vocabulary),
        "tokens": compare_tokens(vocabulary, requests, ours, theirs, margin),
    }
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found["tokens"] | {"differing": len(found["tokens"]["differing"])}))
    found["loads"] = []
    in_flights = [int(one) for one in args.loads.split(",") if one]
    pids = [int(one) for one in args.processes.split(",") if one]
    found["clock"] = "processor time of the server" if pids else "wall"
    with measured_by(pids):
        if in_flights:
            found["costs_ms"] = costs_ms(engine, [int(one) for one in args.rows.split(",")])
            print(found["costs_ms"], flush=True)
        short = SamplingParams(max_tokens=args.load_tokens)
        plain = [remote.request(one, short, strategy="sequential") for one in prompts.values()]
        forking = [replace(one, params=short) for one in requests.values()]
        for in_flight in in_flights:
            found["loads"].append(at_load(engine, forking, plain, in_flight, args.load_s))
            print(brief(found["loads"][-1]), flush=True)
            args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
