"""``pasta examples``: prompts as commands to copy."""

from __future__ import annotations

import shlex

import pytest

from lab.tests.tasks.reading import NUM_PER_FAMILY
from pasta_lab.tasks import make, training_families
from pasta_lab.tasks.draw import owns_value, owns_word
from pasta_lab.tasks.registry import EXAMPLE_SEED, example, held_out_families
from pasta_lab.tasks.task import Split
from tests.cli.conftest import Pasta

TRAINED = training_families()


def prompts(out: str) -> list[str]:
    """Return what a shell makes of the commands, comments left out."""
    words = shlex.split(out, comments=True)
    commands = [words[place : place + 3] for place in range(0, len(words), 3)]
    assert all(command[:2] == ["pasta", "run"] for command in commands)
    return [command[2] for command in commands]


def test_there_is_one_command_for_each_trained_family_that_a_shell_reads_back(pasta: Pasta) -> None:
    result = pasta("examples")
    assert (result.code, result.err) == (0, "")
    assert prompts(result.out) == [example(family).prompt for family in TRAINED]
    titles = [line.split()[1] for line in result.out.splitlines() if line.startswith("# ")]
    assert titles == [*TRAINED]


@pytest.mark.parametrize("seed", [0, 3, 11])
def test_another_seed_draws_other_prompts_that_a_shell_reads_back(pasta: Pasta, seed: int) -> None:
    found = prompts(pasta("examples", "--seed", seed).out)
    assert found == [make(family, "dev", seed).prompt for family in TRAINED]
    assert not {*found} & {example(family).prompt for family in TRAINED}


@pytest.mark.parametrize("family", TRAINED)
def test_a_family_can_be_named(pasta: Pasta, family: str) -> None:
    assert prompts(pasta("examples", "--family", family).out) == [example(family).prompt]


def test_json_has_the_same_prompts(pasta: Pasta) -> None:
    result = pasta("examples", "--json")
    assert (result.code, result.err) == (0, "")
    assert [row["family"] for row in result.json["examples"]] == [*TRAINED]
    assert [row["prompt"] for row in result.json["examples"]] == prompts(pasta("examples").out)
    (one,) = pasta("examples", "--family", "legs", "--seed", 5, "--json").json["examples"]
    assert one == {"family": "legs", "prompt": make("legs", "dev", 5).prompt}


@pytest.mark.parametrize("family", [*held_out_families(), "poems"])
def test_an_unknown_family_is_refused_with_a_list_of_the_families(
    pasta: Pasta, family: str
) -> None:
    result = pasta("examples", "--family", family)
    assert (result.code, result.out) == (2, "")
    assert f"--family cannot be '{family}'" in result.err
    assert "hint: one of takings, " in result.err


def test_a_negative_seed_is_a_usage_error(pasta: Pasta) -> None:
    result = pasta("examples", "--seed", -1)
    assert (result.code, result.out) == (2, "")
    assert "--seed" in result.err


def test_examples_are_in_neither_training_nor_evaluation() -> None:
    assert max(NUM_PER_FAMILY.values()) <= EXAMPLE_SEED
    for task in map(example, TRAINED):
        for word in task.drawn:
            owns = owns_value if word.isdigit() else owns_word
            assert owns(Split.DEV, int(word) if word.isdigit() else word), (task.id, word)


def test_the_answer_with_its_true_structure_is_printed_on_request(pasta: Pasta) -> None:
    (row,) = pasta("examples", "--family", "legs", "--answers", "--json").json["examples"]
    assert row["answer"].count("<async") >= 2
    assert row["answer"] in pasta("examples", "--family", "legs", "--answers").out
