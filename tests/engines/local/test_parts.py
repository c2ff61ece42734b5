"""Parts that are decoded at the same time: each is a sequential answer to what it sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from pasta_lm.engines.local.sampling import Choice, TokenMasks, choose, uniform_number
from pasta_lm.engines.request import Answer, SamplingParams
from pasta_lm.interpreter.commands import PLAIN_TEXT
from pasta_lm.strategies import parts
from pasta_lm.strategies.parts import Part
from tests.architectures import ARCHITECTURES, loaded, own_attention
from tests.engines.local.test_grammars import model, tokens_of

pytest.importorskip("llguidance")

PROMPT = "Book a room for Ada."
GREEDY = SamplingParams(max_tokens=120, ignore_eos=True)
DRAWN = replace(GREEDY, temperature=0.9, top_p=0.9, seed=5)
HOLES = (  # of fixed lengths: no token goes on behind the end of its part
    Part(name="who", lead="Who: ", max_tokens=5),
    Part(name="when", lead=". When: ", max_tokens=7, view="given"),
    Part(name="where", lead=". Where: ", max_tokens=4, after=("who",)),
    Part(name="why", lead=". Why: ", max_tokens=6, after=("when", "where"), view="given"),
    Part(name="how", lead="", max_tokens=5),
)
SEEN = {  # written down by hand: given text, and the parts whose tokens stand in it
    "who": ["Who: "],
    "when": ["Who: . When: "],
    "where": ["Who: ", "who", ". Where: "],
    "why": ["Who: ", "who", ". When: ", "when", ". Where: ", "where", ". Why: "],
    "how": [],
}


def decode(name: str, holes: Sequence[Part], params: SamplingParams, **settings: Any) -> Answer:
    engine = model(name, **settings).engine
    request = parts.parts_request(PROMPT, holes, loaded(name).vocabulary, params)
    return engine.generate([request])[0][0]


def plain_tokens(
    name: str, seen: Sequence[int], decoded: Sequence[int], path: tuple[int, ...], how: Any
) -> list[int]:
    """Return the tokens that a plain causal pass over a sequence chooses for its last ones."""
    whole, masks = loaded(name), TokenMasks(loaded(name).vocabulary, set(), 0, torch.device("cpu"))
    masks = TokenMasks(whole.vocabulary, whole.eos_ids, whole.vocab_size, torch.device("cpu"))
    with own_attention(whole), torch.inference_mode():
        ids = torch.tensor([[*seen, *decoded[:-1]]])
        logits = whole.model(input_ids=ids).logits[0, len(seen) - 1 :].float()
    numbers = [uniform_number(how.seed, 0, path, index) for index in range(len(decoded))]
    return choose(logits, [Choice(how, PLAIN_TEXT, number) for number in numbers], masks)


@pytest.mark.parametrize("how", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_each_part_is_a_plain_causal_answer_to_what_it_sees(name: str, how: SamplingParams) -> None:
    vocabulary, answer = loaded(name).vocabulary, decode(name, HOLES, how)
    decoded = {part.name: tokens_of(answer, n) for n, part in enumerate(HOLES, start=1)}
    for number, part in enumerate(HOLES, start=1):
        seen = [*vocabulary.encode_prompt(PROMPT)]
        for piece in SEEN[part.name]:
            seen += decoded.get(piece) or vocabulary.encode_text(piece)
        ours = decoded[part.name]
        assert len(ours) == part.max_tokens
        assert ours == plain_tokens(name, seen, ours, (number,), how)
