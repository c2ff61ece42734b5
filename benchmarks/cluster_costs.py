"""What a cluster simulation assumes: the time of a step on a server, and the structure of answers.

Every number has its source beside it; those without a published one say that they are assumed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pasta_lm.language.document import Block, Document, parse
from pasta_lm.language.events import Sync, Text

STARTER = Path("corpora/starter/starter.jsonl")
TOKENS_PER_WORD = 1.3  # as in corpora/starter/README.md


class Cost(Protocol):
    """A server's step."""

    capacity: float
    """Tokens whose keys and values fit into its memory."""

    def step_s(self, rows: int, context: int, prefill: int) -> float:
        """Return the seconds of a step.

        Args:
            rows: Threads that decode a token.
            context: Tokens that all of them see, together.
            prefill: Tokens of prompts that are fed.
        """


@dataclass(frozen=True)
class Model:
    """A dense transformer in bfloat16."""

    name: str
    num_parameters: float
    num_layers: int
    kv_bytes: int  # of one token: 2 x layers x KV heads x head size x 2 bytes

    @property
    def num_bytes(self) -> float:
        """Return the size of the weights."""
        return 2 * self.num_parameters


# The Llama 3 Herd of Models (2024), table 3: 8 KV heads of 128.
LLAMA_8B = Model("Llama-3.1-8B", 8.03e9, 32, 2 * 32 * 8 * 128 * 2)
LLAMA_70B = Model("Llama-3.1-70B", 70.6e9, 80, 2 * 80 * 8 * 128 * 2)


@dataclass(frozen=True)
class Gpu:
    """One GPU; several of them share a model by tensor parallelism."""

    name: str
    bandwidth: float  # bytes a second
    flops: float  # bfloat16, dense, a second
    memory: float  # bytes


# NVIDIA's data sheets of the H100 and the H200, SXM. The H200 is here for the check below.
H100 = Gpu("H100 SXM", 3.35e12, 989e12, 80e9)
H200 = Gpu("H200 SXM", 4.8e12, 989e12, 141e9)

# Share of the peak bandwidth: assumed, of the order that Databricks measured at batch 1 ("LLM
# Inference Performance Engineering: Best Practices", 2023).
BANDWIDTH_SHARE = 0.6
# Share of the peak arithmetic of a prefill: that of the training of Llama 3 (the same paper,
# table 4: 38 to 43 %), so a lower bound.
FLOPS_SHARE = 0.43
# Share of the memory that vLLM takes by default (gpu_memory_utilization).
MEMORY_SHARE = 0.9
# What a step costs beside the GPUs' work, and an all-reduce among them: from vLLM's performance
# benchmark (buildkite.com/vllm/performance-benchmark, build 9515): 128 steps of 8 rows take 833 ms
# (8B, one H200) and 2,077 ms (70B, four), given the shares above.
OVERHEAD_S = 0.9e-3
ALL_REDUCE_S = 19e-6
NUM_ALL_REDUCES = 2  # a layer


@dataclass(frozen=True)
class Roofline:
    """A step that is bound by memory or by arithmetic, whichever takes longer."""

    model: Model
    gpu: Gpu
    num_gpus: int = 1

    @property
    def name(self) -> str:
        """Return what is served by what."""
        return f"{self.model.name} on {self.num_gpus} x {self.gpu.name}"

    @property
    def capacity(self) -> float:
        """Return how many tokens fit beside the weights."""
        room = MEMORY_SHARE * self.gpu.memory * self.num_gpus - self.model.num_bytes
        return room / self.model.kv_bytes

    def step_s(self, rows: int, context: int, prefill: int) -> float:
        """Return the seconds of a step; see ``Cost``."""
        read = self.model.num_bytes + self.model.kv_bytes * (context + prefill)
        memory_s = read / (self.gpu.bandwidth * self.num_gpus * BANDWIDTH_SHARE)
        work = 2 * self.model.num_parameters * (rows + prefill)
        compute_s = work / (self.gpu.flops * self.num_gpus * FLOPS_SHARE)
        talk_s = NUM_ALL_REDUCES * self.model.num_layers * ALL_REDUCE_S if self.num_gpus > 1 else 0
        return max(memory_s, compute_s) + OVERHEAD_S + talk_s


@dataclass(frozen=True)
class Linear:
    """A step that grows with its rows and its prompt tokens, as measured on a CPU."""

    base_s: float
    row_s: float
    prefill_s: float
    capacity: float = 1e9

    def step_s(self, rows: int, context: int, prefill: int) -> float:
        """Return the seconds of a step; see ``Cost``."""
        return self.base_s + self.row_s * rows + self.prefill_s * prefill


@dataclass(frozen=True)
class Measured:
    """A step whose time was measured for some numbers of rows."""

    steps: tuple[tuple[int, float], ...]  # rows and seconds, at least two
    prefill_s: float
    capacity: float = 1e9

    def step_s(self, rows: int, context: int, prefill: int) -> float:
        """Return the seconds of a step; between two measured ones, and above, on a line."""
        rows = max(rows, 1)
        right = next((at for at, (some, _) in enumerate(self.steps) if some >= rows), None)
        at = len(self.steps) - 1 if right is None else max(right, 1)
        (few, few_s), (many, many_s) = self.steps[at - 1], self.steps[at]
        slope_s = (many_s - few_s) / (many - few)
        return few_s + slope_s * (rows - few) + self.prefill_s * prefill


# --- answers


@dataclass(frozen=True)
class Fork:
    """A block, and how many tokens main has decoded in its stretch when it is promised."""

    at: int
    num_tokens: int  # decoded, ``</async>`` too


@dataclass(frozen=True)
class Stretch:
    """What main decodes between two syncs, the sync or the end of the text included."""

    num_tokens: int
    forks: tuple[Fork, ...] = ()


@dataclass(frozen=True)
class Plan:
    """The structure of an answer in tokens."""

    num_prompt: int
    stretches: tuple[Stretch, ...]

    @property
    def num_tokens(self) -> int:
        """Return how many tokens are decoded."""
        blocks = (fork.num_tokens for one in self.stretches for fork in one.forks)
        return sum(one.num_tokens for one in self.stretches) + sum(blocks)

    @property
    def critical_path(self) -> int:
        """Return the tokens that must be decoded one after another."""
        path = 0
        for one in self.stretches:
            path += max([one.num_tokens, *(fork.at + fork.num_tokens for fork in one.forks)])
        return path


def plan_of(document: Document, prompt: str, scale: float = 1.0) -> Plan:
    """Return the structure of an answer, its texts so many times as long."""
    count = counting(scale)
    stretches: list[Stretch] = []
    num_main, forks = 0, list[Fork]()
    for item in document.items:
        if isinstance(item, Text):
            num_main += count(item.text)
        elif isinstance(item, Block):
            num_main += 2 + counting(1.0)(item.topic)  # a promise has two pieces around its topic
            forks.append(Fork(num_main, count(item.plain_text) + 1))
        elif isinstance(item, Sync):
            stretches.append(Stretch(num_main + 1, tuple(forks)))
            num_main, forks = 0, []
    stretches.append(Stretch(num_main + 1, tuple(forks)))
    return Plan(counting(1.0)(prompt) + 20, tuple(stretches))  # 20: a chat template


def counting(scale: float) -> Callable[[str], int]:
    """Return what estimates the tokens of a text."""
    return lambda text: max(1, round(TOKENS_PER_WORD * scale * len(text.split())))


def starter_plans(scale: float = 1.0) -> list[tuple[Plan, Plan]]:
    """Return each annotated answer of the starter data set, and the same without tags."""
    rows = [json.loads(line) for line in STARTER.read_text("utf-8").splitlines()]
    found = []
    for row in rows:
        document, prompt = parse(row["response"]), row["messages"][-1]["content"]
        plain = document.without_tags()
        found.append((plan_of(document, prompt, scale), plan_of(plain, prompt, scale)))
    return found


def sequential(plans: Sequence[tuple[Plan, Plan]]) -> list[Plan]:
    """Return the answers without tags."""
    return [plain for _, plain in plans]
