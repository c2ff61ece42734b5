"""A model of transformers behind a stock server: plain causal passes, greedy or nearly so."""

from __future__ import annotations

from collections.abc import Sequence, Set
from pathlib import Path
from threading import Lock

import torch
from transformers import AutoModelForCausalLM

from pasta_lm.engines.servers.completions import read_served
from tests.fakes.stock_server import Draw, NextToken, StockTestServer
from tests.stock import spelled


def greedy(folder: Path) -> NextToken:
    """Return what decodes with the model of a folder, whatever the temperature."""
    model, lock = AutoModelForCausalLM.from_pretrained(folder), Lock()

    def next_token(ids: Sequence[int], barred: Set[int], draw: Draw) -> int:
        with lock, torch.inference_mode():
            logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
            logits[sorted(barred)] = -torch.inf
            logits[sorted(draw.favoured)] += 100
            return int(logits.argmax())

    return next_token


def serving(folder: Path, dialect: str = "vllm") -> StockTestServer:
    """Return a server of the model of a folder."""
    served = read_served(folder)
    tokenize = spelled(served.vocabulary)
    return StockTestServer(greedy(folder), served.eos_ids, tokenize=tokenize, dialect=dialect)
