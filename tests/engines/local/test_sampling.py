"""How one token is chosen: what is legal, what is random, what was seen."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from pasta_lm.engines.passes import sampling
from pasta_lm.engines.passes.sampling import Choice, TokenMasks, adjusted, choose, uniform_number
from pasta_lm.engines.request import SamplingParams
from pasta_lm.errors import UsageError
from pasta_lm.interpreter.interpreter import EVERYTHING, PLAIN_TEXT, Legal
from pasta_lm.language.lexer import LexemeKind
from pasta_lm.language.tags import ASYNC_CLOSE, MAX_UNITS, PIECES, PROMISE_OPEN, SYNC, closing_piece
from tests.small_tokenizers import FAMILIES
from tests.taught import taught

TEXT, CLOSING = LexemeKind.TEXT, LexemeKind.PROMISE_CLOSE
VOCABULARY = taught("byte_level")
EOS = VOCABULARY.num_tokens - 70  # any ordinary id can be an end-of-text
NUM_ROWS = VOCABULARY.num_tokens + 5
CPU = torch.device("cpu")
MASKS = TokenMasks(VOCABULARY, [EOS, 3], NUM_ROWS, CPU)


def legal(*kinds: LexemeKind, end: bool = False, units: int = 0, **topic: bool) -> Legal:
    return Legal(frozenset(kinds), end, units, **topic)


def allowed(masks: TokenMasks, given: Legal, *, ignore_eos: bool = False) -> set[int]:
    row = masks.row(given, ignore_eos)
    assert set(row.tolist()) <= {0.0, -math.inf}
    return set((row == 0).nonzero().flatten().tolist())


def tags(*pieces: str) -> set[int]:
    return {VOCABULARY.piece_id(piece) for piece in pieces}


CLOSINGS = [closing_piece(units) for units in range(1, MAX_UNITS + 1)]
WORDS = set(range(VOCABULARY.num_tokens)) - set(VOCABULARY.piece_ids.values()) - {EOS, 3}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (legal(TEXT), WORDS),
        (legal(TEXT, end=True), WORDS | {EOS, 3}),
        (legal(TEXT, LexemeKind.PROMISE_OPEN), WORDS | tags(PROMISE_OPEN)),
        (legal(TEXT, LexemeKind.SYNC, end=True), WORDS | {EOS, 3} | tags(SYNC)),
        (legal(TEXT, LexemeKind.ASYNC_CLOSE), WORDS | tags(ASYNC_CLOSE)),
        (legal(CLOSING, units=1, in_topic=True), tags(closing_piece(1))),
        (legal(CLOSING, units=64, in_topic=True), tags(*CLOSINGS)),
        (legal(CLOSING, units=7, in_topic=True), tags(*CLOSINGS[:7])),
        (PLAIN_TEXT, WORDS | {EOS, 3}),
        (EVERYTHING, WORDS | {EOS, 3} | tags(*PIECES)),
    ],
)  # fmt: skip
def test_only_legal_tokens_can_be_sampled(given: Legal, expected: set[int]) -> None:
    assert allowed(MASKS, given) == expected
    assert allowed(MASKS, given, ignore_eos=True) == expected - {EOS, 3}


@pytest.mark.parametrize("family", FAMILIES)
def test_in_a_topic_no_token_can_end_it_break_it_or_be_half_a_character(family: str) -> None:
    vocabulary = taught(family)
    masks = TokenMasks(vocabulary, [1], vocabulary.num_tokens + 3, CPU)
    in_topic = allowed(masks, legal(TEXT, in_topic=True))
    assert in_topic
    for token in in_topic:
        text = vocabulary.token_text(token)
        assert len(text.splitlines()) == 1
        assert not set(text) & set('"<>&\ufffd')
    last = allowed(masks, legal(TEXT, in_topic=True, needs_text=True))
    assert last == {token for token in in_topic if vocabulary.token_text(token).strip()}


def test_ids_that_the_model_has_no_row_for_are_left_out() -> None:
    num_rows = VOCABULARY.num_tokens - 3
    row = TokenMasks(VOCABULARY, [10**6, -1, 5], num_rows, CPU).row(EVERYTHING)
    assert len(row) == num_rows
    assert row[5] == 0
    in_topic = TokenMasks(VOCABULARY, [], num_rows, CPU).row(legal(TEXT, in_topic=True))
    assert len(in_topic) == num_rows


GOLDEN = {  # (seed, sample, path, index): blake2b of "seed,sample,index,*path", 53 bits
    (0, 0, (), 0): 0.24704149699358346,
    (0, 0, (), 1): 0.9159938735529927,
    (0, 1, (), 0): 0.8158741287462972,
    (1, 0, (), 0): 0.2674682071942174,
    (0, 0, (1,), 0): 0.87951090315359,
    (-5, 3, (2, 1), 7): 0.2082032838137826,
}


@pytest.mark.parametrize(("key", "number"), GOLDEN.items())
def test_random_numbers_are_the_same_for_ever(
    key: tuple[int, int, tuple[int, ...], int], number: float
) -> None:
    assert uniform_number(*key) == number


def test_random_numbers_are_uniform_and_never_one() -> None:
    numbers = [
        uniform_number(9, s, (p,), i) for s in range(4) for p in range(5) for i in range(100)
    ]
    assert len(set(numbers)) == len(numbers)
    assert 0 <= min(numbers) < 0.01 < 0.99 < max(numbers) < 1
    counts = [sum(k / 10 <= number < (k + 1) / 10 for number in numbers) for k in range(10)]
    assert sum((count - 200) ** 2 / 200 for count in counts) < 27.9  # chi-square, 9 d.f., p 0.001


NUM = 40


@pytest.fixture
def masks() -> TokenMasks:
    """Return masks that forbid nothing among the first forty tokens."""
    found = TokenMasks(VOCABULARY, [], NUM, CPU)
    found.rows = {(EVERYTHING, False): torch.zeros(NUM)}
    return found


def choice(uniform: float = 0.0, seen: Tensor | None = None, **params: float) -> Choice:
    return Choice(SamplingParams(**params), EVERYTHING, uniform, seen)  # type: ignore[arg-type]


def logits(seed: int, *, ties: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    drawn = 3 * torch.randn(NUM, generator=generator)
    return drawn.round() if ties else drawn


@pytest.mark.parametrize("seed", range(40))
def test_the_greedy_choice_is_the_largest_legal_logit_and_of_equals_the_first(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    given = [legal(TEXT), legal(CLOSING, units=7, in_topic=True), PLAIN_TEXT, EVERYTHING]
    rows = torch.randint(-2, 3, (len(given), NUM_ROWS), generator=generator).float()
    rows[0, 3] = 9.0  # not legal there
    expected = [
        max(allowed(MASKS, each), key=lambda token, row=row: (float(row[token]), -token))
        for each, row in zip(given, rows, strict=True)
    ]
    choices = [Choice(SamplingParams(), each, 0.0, None) for each in given]
    assert choose(rows, choices, MASKS) == expected


def test_of_equal_logits_the_lowest_id_wins(masks: TokenMasks) -> None:
    row = torch.zeros(NUM)
    row[[7, 9]] = 1.0
    assert choose(row[None], [choice(0.0, temperature=1.0, top_k=2)], masks) == [7]
    assert choose(row[None], [choice(0.5, temperature=1.0, top_k=2)], masks) == [9]


def test_a_row_is_chosen_whatever_the_other_rows_are(masks: TokenMasks) -> None:
    rows = torch.stack([logits(seed) for seed in range(6)])
    choices = [choice(0.1 * i, temperature=float(i % 2), top_p=0.9) for i in range(6)]
    together = choose(rows, choices, masks)
    assert together == [choose(rows[i : i + 1], [choices[i]], masks)[0] for i in range(6)]


Warper = Callable[[Tensor, Tensor], Tensor]

SETTINGS: list[tuple[dict[str, float], list[Warper]]] = [
    ({"temperature": 1.0}, []),
    ({"temperature": 0.5}, [TemperatureLogitsWarper(0.5)]),
    ({"temperature": 3.0}, [TemperatureLogitsWarper(3.0)]),
    ({"temperature": 1.0, "top_k": 1}, [TopKLogitsWarper(1)]),
    ({"temperature": 1.0, "top_k": 7}, [TopKLogitsWarper(7)]),
    ({"temperature": 1.0, "top_p": 0.6}, [TopPLogitsWarper(0.6)]),
    ({"temperature": 1.0, "top_p": 0.001}, [TopPLogitsWarper(0.001)]),
    ({"temperature": 1.0, "min_p": 0.2}, [MinPLogitsWarper(0.2)]),
    (
        {"temperature": 1.0, "min_p": 0.1, "top_p": 0.7},
        [MinPLogitsWarper(0.1), TopPLogitsWarper(0.7)],
    ),
    (
        {"temperature": 1.7, "top_k": 12, "top_p": 0.8},
        [TemperatureLogitsWarper(1.7), TopKLogitsWarper(12), TopPLogitsWarper(0.8)],
    ),
]


@pytest.mark.parametrize(("params", "warpers"), SETTINGS)
@pytest.mark.parametrize("seed", range(4))
def test_tokens_have_the_probabilities_that_transformers_gives_them(
    params: dict[str, float], warpers: list[Warper], seed: int, masks: TokenMasks
) -> None:
    row = logits(seed)
    scores = row[None].clone()
    for warper in warpers:
        scores = warper(torch.zeros(1, 1, dtype=torch.int64), scores)
    ordered, ids = torch.softmax(scores[0].double(), 0).sort(descending=True, stable=True)
    bounds = [0.0, *ordered.cumsum(0).tolist()]
    for token, (low, high) in zip(ids.tolist(), pairwise(bounds), strict=True):
        if high - low > 1e-9:
            inside = [low + part * (high - low) for part in (0.001, 0.5, 0.999)]
            found = choose(row.expand(3, -1), [choice(u, **params) for u in inside], masks)
            assert found == [token] * 3


@pytest.mark.parametrize("temperature", [1e-320, 1e-30, 1e-3])
def test_a_temperature_near_zero_is_greedy(temperature: float, masks: TokenMasks) -> None:
    row = logits(1)
    for uniform in (0.0, 0.5, 1 - 2**-53):
        found = choose(row[None], [choice(uniform, temperature=temperature)], masks)
        assert found == [int(row.argmax())]


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53])
@pytest.mark.parametrize("temperature", [1.0, 1e30])
def test_what_is_masked_is_never_drawn(
    uniform: float, temperature: float, masks: TokenMasks
) -> None:
    row = torch.full((NUM,), -math.inf).index_fill(0, torch.tensor([3, 8]), 0.0)
    masks.row = lambda *_: row  # type: ignore[assignment]
    given = [choice(uniform, temperature=temperature), choice(uniform)]
    assert set(choose(logits(2).expand(2, -1), given, masks)) <= {3, 8}


@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.3, 10.0])
def test_the_repetition_penalty_is_the_one_of_transformers(penalty: float) -> None:
    rows = torch.stack([logits(0), logits(1)])
    seen = [torch.tensor([3, 5, 5, 11]), None]
    given = [choice(seen=s, repetition_penalty=penalty) for s in seen]
    expected = rows.clone()
    ids = torch.tensor([[3, 5, 11]])
    expected[:1] = RepetitionPenaltyLogitsProcessor(penalty)(ids, rows[:1].clone())
    before = rows.clone()
    assert torch.equal(adjusted(rows, given, 0), expected)
    assert torch.equal(rows, before), "the raw logits are left as they are"


def test_biases_are_added_to_their_tokens_and_the_fork_bias_where_a_promise_is_legal() -> None:
    row, fork = torch.zeros(1, NUM_ROWS), VOCABULARY.piece_id(PROMISE_OPEN)
    every = legal(TEXT, LexemeKind.PROMISE_OPEN)

    def chosen(given: Legal, bias: float, **added: float) -> int:
        ids = {int(name[1:]): value for name, value in added.items()}
        return choose(row, [Choice(SamplingParams(), given, 0.0, None, ids, bias)], MASKS)[0]

    assert chosen(every, 0.0, _7=1.0, _9=2.0) == 9
    assert chosen(every, 2.5, _9=2.0) == fork != chosen(every, 1.5, _9=2.0)
    assert chosen(legal(TEXT), 99.0, _9=2.0) == 9


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", -0.1), ("temperature", math.inf), ("temperature", math.nan), ("top_p", 0.0)]
    + [("top_p", 1.1), ("top_k", 0), ("n", 0), ("min_p", 1.5), ("logit_bias", {3: math.nan})]
    + [("repetition_penalty", 0.0), ("repetition_penalty", math.inf), ("stop", ("",))]
    + [("stop", "a string"), ("max_tokens", 0), ("max_threads", 0)],
)
def test_a_value_that_means_nothing_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"{name} is .* must be"):
        SamplingParams(**{name: value})  # type: ignore[arg-type]


class Counted(TorchDispatchMode):
    """Counts operations: on a device each is a launch, and each upload and wait as well."""

    def __init__(self) -> None:
        super().__init__()
        self.num = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.num += func is not torch.ops.aten.detach.default  # as in a view for NumPy
        return func(*args, **(kwargs or {}))


SCHEMA = torch.arange(NUM_ROWS) % 3 == 0


@pytest.mark.parametrize(
    ("fields", "params"),
    [
        ({}, {}),
        ({"seen": torch.tensor([3, 7])}, {"repetition_penalty": 1.3}),
        ({}, {"temperature": 0.7, "top_p": 0.9}),
        ({"seen": torch.tensor([3, 7]), "added": {5: 2.0}, "fork_bias": 1.0},
         {"temperature": 0.7, "repetition_penalty": 1.3}),
        ({"allowed": SCHEMA}, {}),
        ({"allowed": SCHEMA}, {"temperature": 1.0, "top_k": 20}),
    ],
)  # fmt: skip
def test_choosing_for_many_rows_takes_as_many_operations_as_for_one(
    fields: dict[str, Any], params: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [
        Choice(SamplingParams(**params), legal, uniform=(row + 0.5) / 8, **fields)
        for row, legal in enumerate([PLAIN_TEXT, EVERYTHING] * 4)
    ]
    scores = 3 * torch.randn(8, NUM_ROWS, generator=torch.Generator().manual_seed(1))
    scores[:, EOS + 1] = 99.0  # not allowed by the schema, so that no row is right at once
    alone = [choose(scores[row : row + 1], [one], MASKS)[0] for row, one in enumerate(given)]
    monkeypatch.setattr(sampling, "CPU_DRAWS", 8)  # as on a GPU
    counts = []
    for num in (2, 8):
        with Counted() as counted:
            assert choose(scores[:num], given[:num], MASKS) == alone[:num]
        counts.append(counted.num)
    # Lists of ids and of masks are put together on the host.
    assert counts[0] == counts[1]
