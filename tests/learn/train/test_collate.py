"""Packs: each example gives the same logits as alone, under the visibility of decoding."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.language.document import Document
from pasta_lm.learn.data.annotated import Record
from pasta_lm.learn.data.encode import NO_LABEL, EncodedExample, encode_example
from pasta_lm.learn.data.preferences import PreferencePair
from pasta_lm.learn.train.config import TrainConfig
from pasta_lm.learn.train.learner import Learner
from pasta_lm.learn.train.losses import collate, label_nats
from pasta_lm.learn.train.packs import PairPack, collate_pairs, pack_pairs, reference_log_probs
from tests.architectures import (
    ARCHITECTURES,
    WINDOW,
    build,
    each_of,
    every_architecture,
    load,
    loaded,
)
from tests.fakes.recording_engine import Recording
from tests.learn.data.examples import encoded, named_entries, names, program_of
from tests.learn.train.recipes import logits_of, pair
from tests.programs import decode_document, random_program
from tests.reference import reference

TOLERANCE = 1e-4
PROMPT = "A question?"
PREDICT = PositionStrategy.PREDICT
SOME = ["llama", "mistral", "gemma2", "gemma3", "gpt_oss"]  # windows, soft caps, sinks
some = each_of(SOME)


@cache
def answers(name: str, count: int = 4) -> list[Document]:
    """Return random answers; the second is without tags."""
    vocabulary, rng = loaded(name).vocabulary, random.Random(f"collate {name}")
    programs = [random_program(rng, vocabulary, num_parts=9) for _ in range(count)]
    decoded = [decode_document(vocabulary, program.answer) for program in programs]
    found = [document.with_spaces_after_tags() for document in decoded]
    found[1] = found[1].without_tags()
    return found


def example_of(
    name: str, document: Document, strategy: PositionStrategy = PREDICT
) -> EncodedExample:
    model = loaded(name)
    eos = min(model.eos_ids)
    return encode_example(Record("r", PROMPT, document), model.vocabulary, eos, strategy)


def logits(model: PreTrainedModel, pack: Sequence[EncodedExample]) -> list[Tensor]:
    return list(logits_of(model, collate([pack])).split([len(example) for example in pack]))


def eager(name: str, **changes: Any) -> PreTrainedModel:
    model = build(name, **changes)
    model.set_attn_implementation("eager")
    return model


def eager_logits(
    model: PreTrainedModel, name: str, document: Document, strategy: PositionStrategy
) -> Tensor:
    """Return an answer's logits from its written form alone: the model's attention, a mask drawn.

    Who sees whom and where tokens stand is ``tests.reference``'s; only the order is the example's.
    """
    vocabulary, example = loaded(name).vocabulary, example_of(name, document, strategy)
    program = program_of(document, PROMPT, vocabulary)
    place = reference(program.shape(vocabulary), strategy)
    named = names(example)
    position = torch.tensor([place[one].position for one in named])
    hidden = torch.tensor([[other not in place[one].sees for other in named] for one in named])
    far = position[:, None] - position >= WINDOW
    mask, windowed = additive(hidden), additive(hidden | far)
    masks: Any = {"full_attention": mask, "sliding_attention": windowed}
    if "layer_types" not in ARCHITECTURES[name].settings:
        masks = windowed if model.config.to_dict().get("sliding_window") == WINDOW else mask
    out = model(
        input_ids=torch.tensor([list(example.token_ids)]),
        position_ids=position[None],
        attention_mask=masks,
        use_cache=False,
    )
    return out.logits[0]  # type: ignore[no-any-return]


def additive(hidden: Tensor) -> Tensor:
    return torch.zeros(hidden.shape).masked_fill(hidden, torch.finfo().min)[None, None]


def worst(first: Tensor, second: Tensor) -> float:
    return float((first - second).detach().abs().max())


@every_architecture
@torch.no_grad()
def test_a_pack_gives_the_logits_of_the_models_own_attention_under_an_explicit_mask(
    name: str,
) -> None:
    own = eager(name)
    strategies = [list(PositionStrategy)[index % 3] for index in range(len(answers(name)))]
    pairs = list(zip(answers(name), strategies, strict=True))
    pack = [example_of(name, document, strategy) for document, strategy in pairs]
    assert sum(example.rows is not None for example in pack) == len(pack) - 1
    assert max(map(len, pack)) > 3 * WINDOW
    for found, (document, strategy) in zip(logits(loaded(name).model, pack), pairs, strict=True):
        assert worst(found, eager_logits(own, name, document, strategy)) <= TOLERANCE


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("granite", {"attention_multiplier": 0.4}),
        ("gemma2", {"query_pre_attn_scalar": 6}),
        ("gemma3", {"query_pre_attn_scalar": 6}),
    ],
)
@torch.no_grad()
def test_the_models_attention_scale_is_used(name: str, changes: dict[str, float]) -> None:
    own, ours = eager(name, **changes), load(name, build(name, **changes)).model
    for document in answers(name)[:2]:
        example = example_of(name, document)
        (found,) = logits(ours, [example])
        assert worst(found, eager_logits(own, name, document, PREDICT)) <= TOLERANCE
        assert worst(found, logits(loaded(name).model, [example])[0]) > 100 * TOLERANCE


@pytest.mark.parametrize("name", SOME[:-1])  # in gpt_oss rounding changes the choice of experts
def test_products_in_bfloat16_on_a_cpu_see_what_float32_sees(name: str) -> None:
    model = loaded(name).model
    pack = [example_of(name, document) for document in answers(name)]
    with torch.inference_mode():
        exact = logits(model, pack)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rounded = logits(model, pack)
    for ours, theirs in zip(rounded, exact, strict=True):
        assert (ours - theirs).norm() < 0.03 * theirs.norm()


@pytest.mark.parametrize(
    ("strategy", "max_threads"), [*zip(PositionStrategy, (None, 1, 2), strict=True)]
)
@some
@torch.no_grad()
def test_a_pack_gives_the_logits_of_the_decoding_engine(
    name: str, strategy: PositionStrategy, max_threads: int | None
) -> None:
    model = loaded(name)
    programs = [program_of(document, PROMPT, model.vocabulary) for document in answers(name)]
    params = SamplingParams(max_tokens=800, max_threads=max_threads)
    requests = [
        Request(prompt=p.prompt, forced=p.answer, positions=strategy, params=params)
        for p in programs
    ]
    pack = [example_of(name, document, strategy) for document in answers(name)]
    witnessed = Recording(model, captures=False).run(requests)
    for example, found, (met,) in zip(pack, logits(model.model, pack), witnessed, strict=True):
        slot = {one: index for index, one in enumerate(names(example))}
        named = named_entries(met)
        where = [slot[named[entry]] for entry in met.slots]
        assert len(where) > len(example) / 2
        assert worst(found[where], torch.stack(met.logits)) <= TOLERANCE


def gradients(model: PreTrainedModel, loss: Tensor) -> list[Tensor]:
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    found = torch.autograd.grad(loss, weights, allow_unused=True)
    return [grad for grad in found if grad is not None]


def loss_of(found: Tensor, example: EncodedExample) -> Tensor:
    labels = torch.tensor(example.labels)
    has_label = labels != NO_LABEL
    return label_nats(found[has_label], labels[has_label]).mean()


def assert_close(first: Sequence[Tensor], second: Sequence[Tensor]) -> None:
    scale = max(float(one.abs().max()) for one in first)
    for one, other in zip(first, second, strict=True):
        assert worst(one, other) <= TOLERANCE * scale


@some
def test_the_gradient_of_an_example_does_not_depend_on_its_pack(name: str) -> None:
    model = loaded(name).model
    first, plain, third, fourth = (example_of(name, document) for document in answers(name))
    for example, packs in [
        (first, ([first], [first, plain], [third, first, fourth])),
        (plain, ([plain], [first, plain], [plain, third])),
    ]:
        found = [
            gradients(model, loss_of(logits(model, pack)[pack.index(example)], example))
            for pack in packs
        ]
        assert max(float(grad.abs().max()) for grad in found[0]) > 1e-2
        for other in found[1:]:
            assert_close(found[0], other)


@some
def test_the_gradient_equals_that_of_the_models_own_attention(name: str) -> None:
    own, model = eager(name), loaded(name).model
    for document in answers(name)[:2]:
        example = example_of(name, document)
        (found,) = logits(model, [example])
        expected = eager_logits(own, name, document, PREDICT)
        assert_close(
            gradients(own, loss_of(expected, example)), gradients(model, loss_of(found, example))
        )


def test_decisions_and_the_first_promise_weigh_as_given_and_other_labels_one() -> None:
    pack = [encoded('A<promise topic="t" tokens="1"/><async>ab</async>|<sync/>so'), encoded("so")]
    #           q  A  <  t  >  [ a b ]  |  S  s  o    q  s  o
    weights = [[1, 9, 5, 5, 1, 1, 1, 5, 1, 5, 1, 1, 5], [5, 1, 5]]
    batch = collate([pack], decision_weight=5.0, first_promise_weight=9.0)
    labels = [example.labels[example.num_prompt - 1 :] for example in pack]
    pairs = zip(sum(map(list, labels), []), sum(weights, []), strict=True)
    assert batch["loss_weights"].tolist() == [w for label, w in pairs if label != NO_LABEL]


TRAIN = TrainConfig(out="", steps=1)
two_architectures = pytest.mark.parametrize("name", ["llama", "gemma2"])


def pairs_of(name: str, count: int) -> list[PreferencePair]:
    drawn = iter(answers(name, 2 * count))
    return [pair(str(number), next(drawn), next(drawn), PROMPT) for number in range(count)]


def packed(name: str, pairs: Sequence[PreferencePair], max_tokens: int = 2000) -> list[PairPack]:
    return pack_pairs(pairs, learner(name).encoder(TRAIN), max_tokens, 0)


def learner(name: str) -> Learner:
    model = loaded(name)
    tokenizer: Any = None  # is not read
    return Learner(model.model, tokenizer, model.vocabulary, min(model.eos_ids))


def decoded_log_prob(name: str, document: Document) -> float:
    """Return how likely an answer is, token by token as an engine met it."""
    model = loaded(name)
    program = program_of(document, PROMPT, model.vocabulary)
    params = SamplingParams(max_tokens=800)
    request = Request(prompt=program.prompt, forced=program.answer, params=params)
    ((seen,),) = Recording(model, captures=False).run([request])
    total = 0.0
    for step in seen.steps():
        token = min(model.eos_ids) if step.token is None else step.token
        total += float(torch.log_softmax(step.logits_V.double(), dim=-1)[token])
    return total


@two_architectures
def test_reference_log_probs_equal_those_of_decoding(name: str) -> None:
    pairs = pairs_of(name, 4)
    packs = packed(name, pairs, 400)
    assert len(packs) > 1
    found = reference_log_probs(packs, loaded(name).model, is_bfloat16=False)
    for one in pairs:
        expected = [decoded_log_prob(name, answer) for answer in (one.chosen, one.rejected)]
        assert [*found[one.id]] == pytest.approx(expected, abs=TOLERANCE, rel=1e-6)


def test_chosen_and_rejected_answers_are_packed_in_order() -> None:
    packs = packed("llama", [pair("one", "a b", "c"), pair("two", "d", "e f g")])
    (only,) = (packs[index] for index in range(len(packs)))
    references = {"one": (-1.0, -2.0), "two": (-3.0, -4.0)}
    batch = collate_pairs([only], references)
    answers = [answer for one in only for answer in (one.chosen, one.rejected)]
    assert batch["pair_ids"] == [one.id for one in only]
    assert batch["references"].tolist() == [[*references[one.id]] for one in only]
    assert batch["input_ids"].tolist() == collate([answers])["input_ids"].tolist()
    # Each answer's own tokens and its end.
    assert batch["num_labels"] == [len(answer) - answer.num_prompt + 1 for answer in answers]
