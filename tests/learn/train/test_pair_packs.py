"""Packs of pairs: log-probabilities equal those of decoding and are computed once."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.errors import InputError
from pasta_lm.journal import line_of, read_rows
from pasta_lm.language.document import Document
from pasta_lm.learn.data.encode import encode_example
from pasta_lm.learn.data.preferences import PreferencePair
from pasta_lm.learn.train.config import TrainConfig
from pasta_lm.learn.train.learner import Learner
from pasta_lm.learn.train.losses import collate
from pasta_lm.learn.train.packs import (
    EncodedPair,
    LogProbs,
    PairPack,
    collate_pairs,
    pack_pairs,
    pair_log_probs,
    reference_log_probs,
)
from pasta_lm.learn.train.preference_config import LossConfig
from pasta_lm.models.annotated import Record
from pasta_lm.strategies import apar, pasta
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
    """Return random pairs."""
    answers = iter(documents(name, 2 * count))
    return [pair_of(str(number), next(answers), next(answers)) for number in range(count)]


def pair_of(name: str, chosen: Document, rejected: Document) -> PreferencePair:
    """Return two answers to the one prompt."""
    return PreferencePair(
        id=name,
        prompt=PROMPT,
        chosen=chosen,
        rejected=rejected,
        score_chosen=1.0,
        score_rejected=0.0,
    )


def packed(name: str, pairs: Sequence[PreferencePair], max_tokens: int = 2000) -> list[PairPack]:
    return pack_pairs(pairs, learner(name).encoder(TRAIN), max_tokens, 0)


def learner(name: str, strategy: str = pasta.NAME) -> Learner:
    """Return a tiny model in training."""
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
def test_reference_log_probs_equal_those_of_decoding(name: str, tmp_path: Path) -> None:
    pairs = pairs_of(name, 4)
    packs = packed(name, pairs, 400)
    path = tmp_path / "reference.jsonl"
    model = loaded(name).model
    found = reference_log_probs(path, packs, lambda: model, is_bfloat16=False)
    for one in pairs:
        assert found[one.id].chosen == pytest.approx(
            decoded_log_prob(name, one.chosen), abs=TOLERANCE, rel=1e-6
        )
        assert found[one.id].rejected == pytest.approx(
            decoded_log_prob(name, one.rejected), abs=TOLERANCE, rel=1e-6
        )


def test_reference_log_probs_of_forks_equal_those_of_decoding(tmp_path: Path) -> None:
    loaded_model, rng = loaded("qwen2"), random.Random("pairs of forks")
    vocabulary = loaded_model.vocabulary
    trees = [random_tree(rng) for _ in range(6)]
    assert sum(len(tree.blocks) for tree in trees) > 6
    pairs = [pair_of(str(i), *trees[2 * i : 2 * i + 2]) for i in range(3)]
    train = TrainConfig(out="", steps=1, positions="continue")
    packs = pack_pairs(pairs, learner("qwen2", apar.NAME).encoder(train), 800, 0)
    path = tmp_path / "reference.jsonl"
    found = reference_log_probs(path, packs, lambda: loaded_model.model, is_bfloat16=False)
    prompt = vocabulary.encode_prompt([{"role": "user", "content": PROMPT}])
    params = SamplingParams(max_tokens=800)
    for one in pairs:
        for log_prob, tree in zip(found[one.id], (one.chosen, one.rejected), strict=True):
            request = apar.replay(prompt, tree, vocabulary, params)
            expected = met_log_prob("qwen2", request)
            assert log_prob == pytest.approx(expected, abs=TOLERANCE, rel=1e-6)


def test_reference_log_probs_are_computed_once_and_resume_after_any_truncation(
    tmp_path: Path,
) -> None:
    packs = packed("llama", pairs_of("llama", 6), 250)
    path, model = tmp_path / "reference.jsonl", loaded("llama").model
    found = reference_log_probs(path, packs, lambda: model, is_bfloat16=False)
    assert len(packs) > 2
    assert [*found] == [one.id for index in range(len(packs)) for one in packs[index]]
    whole = path.read_bytes()

    def never() -> torch.nn.Module:
        raise AssertionError("everything is known")

    assert reference_log_probs(path, packs, never, is_bfloat16=False) == found  # type: ignore[arg-type]
    for size in (0, 1, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert reference_log_probs(path, packs, lambda: model, is_bfloat16=False) == found
        assert path.read_bytes() == whole


def test_reference_log_probs_of_other_answers_are_refused(tmp_path: Path) -> None:
    packs = packed("llama", pairs_of("llama", 2))
    path = tmp_path / "reference.jsonl"
    reference_log_probs(path, packs, lambda: loaded("llama").model, is_bfloat16=False)
    (first, *others) = read_rows(path)
    path.write_bytes(b"".join(map(line_of, [{**first, "pair": "0" * 16}, *others])))
    with pytest.raises(InputError, match=f"is of another pair {first['id']}"):
        reference_log_probs(path, packs, lambda: loaded("llama").model, is_bfloat16=False)


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


def test_log_probs_do_not_depend_on_the_pack() -> None:
    pairs = pairs_of("llama", 3)
    model = loaded("llama").model
    nothing = {one.id: LogProbs(0.0, 0.0) for one in pairs}
    with torch.no_grad():
        together = {}
        packs = packed("llama", pairs)
        assert len(packs) == 1
        batch = collate_pairs([packs[0]], nothing)
        found = pair_log_probs(model, batch)
        together = dict(zip([one.id for one in packs[0]], found, strict=True))
        for one in packs[0]:
            batch = collate_pairs([[one]], nothing)
            (alone,) = pair_log_probs(model, batch)
            assert torch.allclose(alone, together[one.id], atol=TOLERANCE)


def test_a_pairs_length_and_digest_cover_both_answers() -> None:
    (one,) = packed("llama", [pair("one", "a b", "c")])[0]
    assert len(one) == len(one.chosen) + len(one.rejected)
    turned = EncodedPair("one", one.rejected, one.chosen)
    same = EncodedPair("other", one.chosen, one.rejected)
    assert one.digest == same.digest != turned.digest


def test_beta_depends_on_the_number_of_samples() -> None:
    assert LossConfig().beta_for(10) == pytest.approx(0.0196382, rel=1e-5)
    assert LossConfig().beta_for(5) == pytest.approx(1 / (8 * 25 / 12))
    assert LossConfig(beta=0.3).beta_for(5) == 0.3


def test_a_pair_is_encoded_with_its_prompt() -> None:
    (one,) = packed("llama", [pair("one", "a b", "c", prompt="Why?")])[0]
    model = loaded("llama")
    record = Record("one", "Why?", pair("one", "a b", "c").chosen)
    assert one.chosen == encode_example(record, model.vocabulary, min(model.eos_ids))
