"""A model in this process that reads: the verdict of a judge in one token, and nats of answers.

As a judge it stands where the connection to a remote endpoint stands, so templates, stored replies
and resuming are those of every language model that judges.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from pasta_lm.engines.local.loading import LoadedModel, load
from pasta_lm.engines.servers.request_pace import Pace
from pasta_lm.errors import ModelError, RequestError
from pasta_lm.learn.chat.chat import Response
from pasta_lm.learn.chat.client import ChatClient, Endpoint
from pasta_lm.learn.judge.judge import IN_PROCESS

if TYPE_CHECKING:
    from torch import Tensor

LETTERS = ("A", "B")
CUE = "\n\nThe better answer is answer"
"""Before the verdict of a model without a chat template, which continues a text."""

# Legend: N tokens of a prompt, M of an answer, V of the vocabulary.


class ReadingModel:
    """A model that reads given text; nothing is sampled."""

    def __init__(self, loaded: LoadedModel) -> None:
        """Take over a loaded model: its attention is that of transformers from now on."""
        self.name = loaded.name
        self.vocabulary = loaded.vocabulary
        self._loaded = loaded
        loaded.model.set_attn_implementation("eager")  # the one that every architecture has

    def encode(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the prompt of some messages; a template without a system turn gets one turn.

        Raises:
            RequestError: the chat template refuses even that.
        """
        whole = "\n\n".join(one["content"] for one in messages)
        if not self.vocabulary.has_chat_template:
            return self.vocabulary.encode_prompt(whole + CUE)
        try:
            return self.vocabulary.encode_prompt(messages)
        except RequestError:
            return self.vocabulary.encode_prompt([{"role": "user", "content": whole}])

    def next_logprobs(self, token_ids: Sequence[int]) -> Tensor:
        """Return [V], float32: natural log-probabilities of the token after a prompt.

        Raises:
            RequestError: the prompt is longer than the context of the model.
        """
        logits_V = self._logits(token_ids, 1)[0]
        return logits_V.log_softmax(-1)

    def answer_nats(self, prompt: str, answer: str) -> list[float]:
        """Return -log p of each token of an answer, behind the prompt as the user's turn.

        Raises:
            RequestError: both together are longer than the context of the model.
        """
        vocabulary = self.vocabulary
        if vocabulary.has_chat_template:
            before = vocabulary.encode_prompt([{"role": "user", "content": prompt}])
        else:
            before = vocabulary.encode_prompt(f"{prompt}\n\n")
        answer_M = vocabulary.encode_text(answer)
        if not answer_M:
            return []
        logits_MV = self._logits([*before, *answer_M], len(answer_M) + 1)[:-1]
        labels_M = torch.tensor(answer_M, device=logits_MV.device)
        nats: list[float] = torch.nn.functional.cross_entropy(
            logits_MV, labels_M, reduction="none"
        ).tolist()
        return nats

    def _logits(self, token_ids: Sequence[int], num_last: int) -> Tensor:
        """Return [num_last, V], float32: the logits at the last positions."""
        last = self._loaded.max_position
        if last is not None and len(token_ids) > last + 1:
            raise RequestError(f"{len(token_ids)} tokens do not fit the {last + 1} of {self.name}")
        ids_N = torch.tensor([token_ids], device=self._loaded.device)
        with torch.inference_mode():
            out = self._loaded.model(input_ids=ids_N, use_cache=False, logits_to_keep=num_last)
        logits: Tensor = out.logits[0, -num_last:].float()
        return logits


class LocalTransport:
    """Answers the requests of a ``ChatClient`` with the verdict of a model in this process.

    The reply has the candidates A and B alone, as if nothing else could be said; what share of all
    probability they have is in the stored reply, under ``letter_mass``.
    """

    def __init__(self, model: Callable[[], ReadingModel]) -> None:
        """Prepare to judge; the model is loaded at the first request."""
        self._load = model

    @cached_property
    def _model(self) -> ReadingModel:
        return self._load()

    @cached_property
    def _letter_ids(self) -> list[list[int]]:
        """The ids of each letter, alone and behind a space."""
        encode = self._model.vocabulary.encode_text
        found = [[encode(one), encode(f" {one}")] for one in LETTERS]
        ids = [sorted({one[0] for one in letter if len(one) == 1}) for letter in found]
        if not all(ids):
            raise ModelError(f"{self._model.name} has no token for the verdicts A and B")
        return ids

    async def post(self, body: Mapping[str, Any]) -> Response:
        """Return the verdict on one request as a reply of one token.

        Raises:
            RequestError: the prompt does not fit the model, or more than one token is wanted.
        """
        if body.get("max_tokens") != 1:
            raise RequestError(
                "a judge in this process gives a verdict of one token",
                hint="the template one-token-v1, or method 'logprobs'",
            )
        model = self._model
        token_ids = model.encode(body["messages"])
        logprobs_V = model.next_logprobs(token_ids)
        each = torch.stack([logprobs_V[ids].logsumexp(0) for ids in self._letter_ids])
        mass, given = float(each.logsumexp(0).exp()), each.log_softmax(0).tolist()
        top = [
            {"token": letter, "logprob": one} for letter, one in zip(LETTERS, given, strict=True)
        ]
        best = max(top, key=lambda one: one["logprob"])
        choice = {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": best["token"]},
            "logprobs": {"content": [{**best, "top_logprobs": top}]},
        }
        usage = {"prompt_tokens": len(token_ids), "completion_tokens": 1}
        reply = {"model": model.name, "choices": [choice], "usage": usage, "letter_mass": mass}
        return Response(200, {}, json.dumps(reply).encode())

    async def close(self) -> None:
        """Keep the model: another round may ask."""


def reading_model(name: str, dtype: str | None = None, device: str | None = None) -> ReadingModel:
    """Load a model that reads; the errors are those of ``engines.torch.loading.load``."""
    return ReadingModel(load(name, dtype=dtype, device=device))


def local_client(
    name: str, dtype: str | None = None, device: str | None = None
) -> Callable[[], ChatClient]:
    """Return what makes the client of a judge in this process; its model is loaded when asked."""
    transport = LocalTransport(lambda: reading_model(name, dtype, device))
    endpoint = Endpoint(base_url=IN_PROCESS, model=name)
    return lambda: ChatClient(endpoint, pace=Pace(max_in_flight=1), transport=transport)
