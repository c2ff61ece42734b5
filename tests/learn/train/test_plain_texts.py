"""Training on plain texts gives what the masked form of an example gives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.local.loading import load
from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.errors import UsageError
from pasta_lm.interpreter.positions import Join, PositionStrategy
from pasta_lm.language.document import parse
from pasta_lm.learn.data.annotated import Record, write_records
from pasta_lm.learn.data.encode import EncodedExample, encode_example
from pasta_lm.learn.train import sft as training
from pasta_lm.learn.train.config import DataConfig
from pasta_lm.learn.train.losses import collate, label_nats, over_labels, plain_texts
from pasta_lm.learn.train.sft import train_sft
from tests.architectures import loaded
from tests.fakes.power_cut import PowerCutError, fail_after
from tests.learn.train.recipes import begin, losses, sft
from tests.learn.train.test_collate import PROMPT, answers, eager, gradients

HYBRID = {
    "model_type": "lfm2",
    "block_auto_adjust_ff_dim": False,
    "layer_types": ["conv", "full_attention"],
}


def examples(name: str) -> list[EncodedExample]:
    model, plain, join = loaded(name), PositionStrategy.CONTINUE, Join.RECOMPUTE
    records = [Record("r", PROMPT, document) for document in answers(name)]
    eos = min(model.eos_ids)
    return [encode_example(each, model.vocabulary, eos, plain, join=join) for each in records]


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3"])
def test_plain_texts_have_the_logits_and_the_gradients_of_the_masked_form(name: str) -> None:
    models = loaded(name).model, eager(name)
    batch = collate([examples(name)])
    masked, plain = (over_labels(each, batch, lambda logits, _: logits.T) for each in models)
    torch.testing.assert_close(masked, plain, atol=1e-4, rtol=0)
    losses_of = [over_labels(each, batch, label_nats).mean() for each in models]
    grads = [gradients(each, loss) for each, loss in zip(models, losses_of, strict=True)]
    for expected, found in zip(*grads, strict=True):
        torch.testing.assert_close(expected, found, atol=1e-4, rtol=1e-3)


def test_each_token_is_in_a_text_behind_what_it_sees() -> None:
    for example in examples("llama"):
        texts = plain_texts(example)
        assert {int(slot) for slots in texts for slot in slots} == {*range(len(example))}


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
    settings = {"learning_rate": 2e-2, "schedule": "constant", "save_steps": 30, "epochs": 60}
    config = sft(
        begin(tmp_path, **HYBRID),
        tmp_path / "out",
        DataConfig(file=str(path)),
        **{**settings, "positions": "continue", "join": "recompute"},
    )
    with monkeypatch.context() as patch:
        fail_after(patch, training, "weighted_mean", 40)
        with pytest.raises(PowerCutError):
            train_sft(config)
    model = load(train_sft(config, resume=True))
    assert max(losses(config)) == 60
    assert model.reader is not None
    request = Request(
        prompt=model.vocabulary.encode_prompt([{"role": "user", "content": "Count."}]),
        params=SamplingParams(max_tokens=60),
        positions=model.positions,
        join=model.join,
    )
    ((decoded,),) = TorchEngine(model, pool_tokens=256).generate([request])
    assert decoded.document == answer.with_lengths(model.vocabulary.count_tokens)
    assert len(decoded.trace.threads) == 3
