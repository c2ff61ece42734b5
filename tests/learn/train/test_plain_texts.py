"""Training on plain texts gives what the masked form of an example gives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.local.loading import load
from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.errors import UsageError
from pasta_lm.interpreter import Join, PositionStrategy
from pasta_lm.language.document import parse
from pasta_lm.learn.data.annotated import Record, write_records
from pasta_lm.learn.data.encode import EncodedExample, encode_example
from pasta_lm.learn.train.config import DataConfig
from pasta_lm.learn.train.losses import collate, label_nats, over_labels, plain_texts
from pasta_lm.learn.train.sft import train_sft
from tests.architectures import loaded
from tests.learn.train.recipes import HYBRID, begin, losses, sft
from tests.learn.train.test_collate import PROMPT, answers, eager, example_of, gradients
from tests.learn.train.test_sft import PowerCutError, cut_power

NAMES = pytest.mark.parametrize("name", ["llama", "mistral", "qwen3"])


def examples(name: str) -> list[EncodedExample]:
    model = loaded(name)
    plain, join = PositionStrategy.CONTINUE, Join.RECOMPUTE
    return [
        encode_example(
            Record("r", PROMPT, document), model.vocabulary, min(model.eos_ids), plain, join=join
        )
        for document in answers(name)
    ]


@NAMES
def test_plain_texts_have_the_logits_and_the_gradients_of_the_masked_form(name: str) -> None:
    masked, plain = loaded(name).model, eager(name)
    batch = collate([examples(name)])
    expected, found = (
        over_labels(model, batch, lambda logits, _: logits.T) for model in (masked, plain)
    )
    torch.testing.assert_close(expected, found, atol=1e-4, rtol=0)
    grads = [
        gradients(model, over_labels(model, batch, label_nats).mean()) for model in (masked, plain)
    ]
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


def test_each_token_with_a_label_is_in_a_text_behind_what_it_sees() -> None:
    for example in examples("llama"):
        texts = plain_texts(example)
        assert {int(slot) for slots in texts for slot in slots} == {*range(len(example))}
        for slots in texts:
            assert [example.positions[slot] for slot in slots] == [*range(len(slots))]


def test_an_example_with_gaps_is_refused() -> None:
    gaps = example_of("llama", answers("llama")[0], PositionStrategy.PREDICT)
    with pytest.raises(UsageError, match="has no plain texts"):
        plain_texts(gaps)


def test_a_hybrid_model_that_would_learn_gaps_is_refused_before_anything_is_trained(
    tmp_path: Path,
) -> None:
    with pytest.raises(UsageError, match="Lfm2ForCausalLM learns plain texts only"):
        train_sft(sft(begin(tmp_path, **HYBRID), tmp_path / "out"))


def test_a_hybrid_model_that_is_killed_and_resumed_learns_its_records_and_decodes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data.jsonl"
    answer = parse('<async topic="a">one</async><async topic="b">two</async><sync/>.', "annotator")
    write_records(path, [Record("only", "Count.", answer)])
    settings = {"learning_rate": 2e-2, "schedule": "constant", "save_steps": 30}
    config = sft(
        begin(tmp_path, **HYBRID),
        tmp_path / "out",
        DataConfig(file=str(path)),
        **{**settings, "epochs": 60, "positions": "continue", "join": "recompute"},
    )
    with monkeypatch.context() as patch:
        cut_power(patch, 40)
        with pytest.raises(PowerCutError):
            train_sft(config)
    loaded_model = load(train_sft(config, resume=True))
    assert max(losses(config)) == 60
    assert loaded_model.reader is not None
    request = Request(
        prompt=loaded_model.vocabulary.encode_prompt([{"role": "user", "content": "Count."}]),
        params=SamplingParams(max_tokens=60),
        positions=loaded_model.positions,
        join=loaded_model.join,
    )
    ((decoded,),) = TorchEngine(loaded_model, pool_tokens=256).generate([request])
    assert decoded.document == answer.with_lengths(loaded_model.vocabulary.count_tokens)
    assert len(decoded.trace.threads) == 3
