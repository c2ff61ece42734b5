"""Answers read by another model: nats with the prompt before them, and without.

A low figure alone proves nothing: repeated text is read with few nats.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from pasta_lm.data.encode import NO_LABEL, EncodedExample
from pasta_lm.engines.vocabulary import Vocabulary
from pasta_lm.evaluate.cost import Reader

Read = Callable[[Sequence[tuple[str, str]]], Sequence[tuple[float, float, int]]]
"""From prompts and answers to nats with the prompt, nats without it, and the number of tokens."""


def reading(vocabulary: Vocabulary, eos_id: int, nats: Reader) -> Read:
    """Return the function that reads answers with a model.

    A model with a chat template reads the prompt as the user's turn; another one reads a paragraph.
    Without a prompt an answer follows the begin-of-text, or the end-of-text where there is none.

    Args:
        vocabulary: Of the model.
        eos_id: Its end-of-text.
        nats: Returns the nats of each label; ``train.losses.token_nats`` with the model.
    """
    alone = vocabulary.prompt_prefix or (eos_id,)

    def begun(prompt: str) -> list[int]:
        if vocabulary.has_chat_template:
            return vocabulary.encode_prompt([{"role": "user", "content": prompt}])
        return vocabulary.encode_prompt(f"{prompt}\n\n")

    def read(pairs: Sequence[tuple[str, str]]) -> list[tuple[float, float, int]]:
        answers = [vocabulary.encode_text(text) for _, text in pairs]
        prompts = [begun(prompt) for prompt, _ in pairs]
        given = nats([_example(*both) for both in zip(prompts, answers, strict=True)])
        without = nats([_example(alone, answer) for answer in answers])
        return [
            (sum(with_prompt), sum(other), len(answer))
            for (with_prompt, _), (other, _), answer in zip(given, without, answers, strict=True)
        ]

    return read


def _example(prompt: Sequence[int], answer: Sequence[int]) -> EncodedExample:
    """Return an answer behind a prompt; what follows the answer is not predicted."""
    token_ids = [*prompt, *answer]
    return EncodedExample(
        id="",
        token_ids=array("i", token_ids),
        labels=array("i", [*[NO_LABEL] * (len(prompt) - 1), *answer, NO_LABEL]),
        positions=array("i", range(len(token_ids))),
        owners=array("i"),
        row_of=array("i"),
        rows=None,
        num_prompt=len(prompt),
    )
