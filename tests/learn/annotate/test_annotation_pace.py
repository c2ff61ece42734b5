"""How well a run uses what a server can take, by a clock of its own.

The ideal is what the good answers alone take at the bound on requests in flight that the run had on
average; a fifth of failures that take as long as answers makes 1.25 of it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.scripted_server import Faults
from tests.learn.annotate.simulated_time import measured

NUM_ROWS = 600
LATENCY_S = 0.2
MIXES = {
    "500": Faults(server_error=0.2),
    "500 and broken replies": Faults(server_error=0.1, truncated=0.1),
    "500 and 429": Faults(server_error=0.14, too_many=0.06),
    "500, 429 and time-outs": Faults(
        server_error=0.1, too_many=0.06, truncated=0.02, hang=0.02, refusal_latency_s=0.02
    ),
}


@pytest.mark.parametrize("name", MIXES)
def test_with_a_fifth_of_errors_a_run_ends_within_1_3_times_the_ideal(
    name: str, tmp_path: Path
) -> None:
    faults = replace(MIXES[name], latency_s=LATENCY_S, seed=2)
    found = measured(faults, NUM_ROWS, 4, tmp_path)
    assert 0.19 < 1 - NUM_ROWS / found.num_requests < 0.22
    assert 2.5 < found.mean_bound <= 4
    assert found.wall_s <= 1.3 * NUM_ROWS * LATENCY_S / found.mean_bound


def test_the_capacity_of_a_server_is_used_although_it_refuses_more(tmp_path: Path) -> None:
    faults = Faults(max_in_flight=12, latency_s=LATENCY_S, refusal_latency_s=0.02)
    found = measured(faults, NUM_ROWS, 64, tmp_path)
    assert found.wall_s <= 1.3 * NUM_ROWS * LATENCY_S / 12
    assert found.num_requests < 1.2 * NUM_ROWS


def test_without_errors_the_bound_is_reached_after_few_answers(tmp_path: Path) -> None:
    found = measured(Faults(latency_s=LATENCY_S), NUM_ROWS, 32, tmp_path)
    assert found.wall_s <= LATENCY_S * (NUM_ROWS / 32 + 5)
