"""Packs of pairs: log-probabilities equal those of decoding and are computed once."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.language.document import Document
from pasta_lm.learn.data.annotated import Record
from pasta_lm.learn.data.encode import encode_example
from pasta_lm.learn.data.preferences import PreferencePair
from pasta_lm.learn.train.config import TrainConfig
from pasta_lm.learn.train.learner import Learner
from pasta_lm.learn.train.losses import collate
from pasta_lm.learn.train.packs import (
    LogProbs,
    PairPack,
    collate_pairs,
    pack_pairs,
    reference_log_probs,
)
from pasta_lm.strategies import APAR, PASTA, apar_request
from pasta_lm.strategies.requests import forced
from tests.architectures import loaded
from tests.decoding import decode_document
from tests.fakes.recording_engine import Recording
from tests.learn.data.examples import program_of
from tests.learn.data.test_encode_baselines import random_tree
from tests.learn.train.preferences import pair
from tests.programs import random_program

TOLERANCE = 1e-4
PROMPT = "A question?"
TRAIN = TrainConfig(out="", steps=1)
some = pytest.mark.parametrize("name", ["llama", "gemma2"])


def documents(name: str, count: int) -> list[Document]:
    """Return random answers; every fourth is without tags."""
    vocabulary, rng = loaded(name).vocabulary, random.Random(f"pairs {name}")
    programs = [random_program(rng, vocabulary, num_parts=6) for _ in range(count)]
    found = [decode_document(vocabulary, program.answer) for program in programs]
    return [one.without_tags() if i % 4 == 3 else one for i, one in enumerate(found)]


def pairs_of(name: str, count: int) -> list[PreferencePair]:
    answers = iter(documents(name, 2 * count))
    return [pair(str(number), next(answers), next(answers), PROMPT) for number in range(count)]


def packed(name: str, pairs: Sequence[PreferencePair], max_tokens: int = 2000) -> list[PairPack]:
    return pack_pairs(pairs, learner(name).encoder(TRAIN), max_tokens, 0)


def learner(name: str, strategy: str = PASTA) -> Learner:
    model = loaded(name)
    tokenizer: Any = None  # is not read
    return Learner(model.model, tokenizer, model.vocabulary, min(model.eos_ids), strategy)


def decoded_log_prob(name: str, document: Document) -> float:
    """Return how likely an answer is, token by token as an engine met it.

    Records move the spaces before tags, so the engine is given the answer in the same form.
    """
    moved = document.with_spaces_after_tags()
    program = program_of(moved, PROMPT, loaded(name).vocabulary)
    params = SamplingParams(max_tokens=800)
    return met_log_prob(name, Request(prompt=program.prompt, forced=program.answer, params=params))


def met_log_prob(name: str, request: Request) -> float:
    """Return how likely the answer of a request is, by the logits that decoding it met."""
    model = loaded(name)
    ((seen,),) = Recording(model, captures=False).run([request])
    total = 0.0
    for step in seen.steps():
        token = min(model.eos_ids) if step.token is None else step.token
        total += float(torch.log_softmax(step.logits_V.double(), dim=-1)[token])
    return total


@some
def test_reference_log_probs_equal_those_of_decoding(name: str) -> None:
    pairs = pairs_of(name, 4)
    packs = packed(name, pairs, 400)
    assert len(packs) > 1
    found = reference_log_probs(packs, loaded(name).model, is_bfloat16=False)
    for one in pairs:
        expected = [decoded_log_prob(name, answer) for answer in (one.chosen, one.rejected)]
        assert [*found[one.id]] == pytest.approx(expected, abs=TOLERANCE, rel=1e-6)


def test_reference_log_probs_of_forks_equal_those_of_decoding() -> None:
    loaded_model, rng = loaded("qwen2"), random.Random("pairs of forks")
    vocabulary = loaded_model.vocabulary
    trees = [random_tree(rng) for _ in range(6)]
    assert sum(len(tree.blocks) for tree in trees) > 6
    pairs = [pair(str(i), *trees[2 * i : 2 * i + 2], PROMPT) for i in range(3)]
    train = TrainConfig(out="", steps=1, positions="continue")
    packs = pack_pairs(pairs, learner("qwen2", APAR).encoder(train), 800, 0)
    found = reference_log_probs(packs, loaded_model.model, is_bfloat16=False)
    prompt = vocabulary.encode_prompt([{"role": "user", "content": PROMPT}])
    params = SamplingParams(max_tokens=800)
    for one in pairs:
        for log_prob, tree in zip(found[one.id], (one.chosen, one.rejected), strict=True):
            request = forced(apar_request(prompt, params), tree, vocabulary)
            expected = met_log_prob("qwen2", request)
            assert log_prob == pytest.approx(expected, abs=TOLERANCE, rel=1e-6)


# --- packs


def test_chosen_and_rejected_answers_are_packed_in_order() -> None:
    packs = packed("llama", [pair("one", "a b", "c"), pair("two", "d", "e f g")])
    (only,) = (packs[index] for index in range(len(packs)))
    references = {"one": LogProbs(-1.0, -2.0), "two": LogProbs(-3.0, -4.0)}
    batch = collate_pairs([only], references)
    answers = [answer for one in only for answer in (one.chosen, one.rejected)]
    assert batch["pair_ids"] == [one.id for one in only]
    assert batch["references"].tolist() == [[*references[one.id]] for one in only]
    assert batch["input_ids"].tolist() == collate([answers])["input_ids"].tolist()
    # Each answer's own tokens and its end.
    assert batch["num_labels"] == [len(answer) - answer.num_prompt + 1 for answer in answers]


def test_a_pair_is_encoded_with_its_prompt() -> None:
    (one,) = packed("llama", [pair("one", "a b", "c", prompt="Why?")])[0]
    model = loaded("llama")
    record = Record("one", "Why?", pair("one", "a b", "c").chosen)
    assert one.chosen == encode_example(record, model.vocabulary, min(model.eos_ids))
