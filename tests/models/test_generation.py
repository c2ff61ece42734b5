"""The ends of a turn, wherever they are named, and the settings of ``generation_config.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, LlamaConfig

from pasta_lm.errors import ModelError
from pasta_lm.language.tags import SYNC
from pasta_lm.learn.train.config import ModelConfig
from pasta_lm.learn.train.learner import load_learner
from pasta_lm.models import checkpoint
from pasta_lm.models.generation import sampling_settings, turn_end
from pasta_lm.models.load import load_pretrained, load_without_weights
from pasta_lm.strategies.model import Pasta
from tests.adapters import a_base_folder

ENDS = ["<|user|>", "<|im_end|>", "<|im_start|>", "<|eot_id|>", "<think>", "</think>", SYNC]
TURN = "{{ m.role }} {{ m.content }}"
CHATML = (
    "{% for m in messages %}<|im_start|>" + TURN + "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>{% endif %}"
)


def change(file: Path, settings: dict[str, object]) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))


def a_model(folder: Path, template: str | None = None, words: list[str] | None = None) -> Path:
    """Save a random model whose tokenizer has a template and further special tokens."""
    a_base_folder(folder, vocab_size=700)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(words or [], special_tokens=True)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder


SETTINGS, CONFIG = "generation_config.json", "config.json"


@pytest.mark.parametrize("load", [load_pretrained, load_without_weights])
@pytest.mark.parametrize(
    ("settings", "config", "more"),
    [
        ({}, {}, []),
        ({"eos_token_id": 7}, {}, [7]),
        ({"eos_token_id": [7, 9, 7]}, {}, [7, 9]),
        ({"eos_token_id": "<|user|>"}, {}, ["<|user|>"]),
        ({"eos_token_id": ["<|user|>", 7]}, {}, ["<|user|>", 7]),
        ({"eos_token_id": None}, {"eos_token_id": None}, []),
        ({"eos_token_id": 7}, {"eos_token_id": [8, 9]}, [7, 8, 9]),
        ({}, {"eos_token_id": 699}, [699]),
        ({}, {"eos_token_id": 700}, []),  # there is no such token: said
    ],
)
def test_the_ends_are_those_of_all_files_together(
    tmp_path: Path, load: Any, settings: Any, config: Any, more: list[int | str]
) -> None:
    folder = a_model(tmp_path / "m", words=ENDS[:1])
    change(folder / SETTINGS, settings)
    change(folder / CONFIG, config)
    tokenizer = load_tokens(folder)
    ids = [tokenizer.convert_tokens_to_ids(x) if isinstance(x, str) else x for x in more]
    loaded = load(folder)
    assert loaded.eos_ids == {tokenizer.eos_token_id, *ids}
    written = loaded.model.generation_config.eos_token_id
    assert {*([written] if isinstance(written, int) else written)} == loaded.eos_ids


def test_decoding_ends_at_each_and_training_learns_that_of_the_template(tmp_path: Path) -> None:
    folder = a_model(tmp_path / "m", CHATML, ENDS)
    change(folder / SETTINGS, {"eos_token_id": [7]})
    model, end = Pasta.from_pretrained(folder, pool_tokens=512), turn_end(load_tokens(folder))
    assert {7, end} < model.engine.loaded.eos_ids
    for token in model.engine.loaded.eos_ids:
        assert model.generate("Hi", max_tokens=5, logit_bias={token: 1e6}).finish_reason == "stop"
    learner = load_learner(ModelConfig(base=str(folder)))
    assert learner.eos_id == end != learner.tokenizer.eos_token_id


def load_tokens(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder)


OPEN = "{% if add_generation_prompt %}<|user|>{% endif %}"
MANY = "{% for m in messages %}" + TURN


@pytest.mark.parametrize(
    ("template", "end"),
    [
        (CHATML, "<|im_end|>"),
        (CHATML.replace("<|im_end|>", "  <|im_end|>"), "<|im_end|>"),
        (CHATML.partition("{% if add")[0] + "<|im_start|>", "<|im_end|>"),  # always opens a turn
        (MANY + "{{ eos_token }}{% endfor %}" + OPEN, "<|end|>"),
        (MANY + "{% endfor %}" + OPEN, None),
        (MANY + "{% endfor %}<|user|>", None),  # the next turn's beginning
        (MANY + "</think>{% endfor %}<think>" + OPEN, None),  # a thought's end
        (MANY + SYNC + "{% endfor %}" + OPEN, None),  # a tag
        (MANY + ".{% endfor %}" + OPEN, None),
        ("{{ raise_exception('no') }}", None),
        (None, None),
    ],
)
def test_the_end_that_a_chat_template_writes_is_found(
    tmp_path: Path, template: str | None, end: str | None
) -> None:
    tokenizer = load_tokens(a_model(tmp_path / "m", template, ENDS))
    expected = tokenizer.eos_token_id if end == "<|end|>" else tokenizer.get_vocab().get(end)
    assert turn_end(tokenizer) == expected


def test_llama_s_ends_are_known_by_name_and_a_class_s_default_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, tokenizer = a_model(tmp_path / "m", words=ENDS), load_tokens(tmp_path / "m")
    change(folder / CONFIG, {"eos_token_id": 7})  # a word
    change(folder / SETTINGS, {"eos_token_id": None})
    ends = {tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|eot_id|>")}
    assert load_pretrained(folder).eos_ids == ends | {7}
    monkeypatch.setattr(LlamaConfig, "eos_token_id", 7)
    assert load_pretrained(folder).eos_ids == ends


@pytest.mark.parametrize(
    ("settings", "sampling"),
    [
        *[({"top_k": off, "temperature": 0.5}, {"temperature": 0.5}) for off in (-1, 0, None)],
        ({"top_k": 20.0}, {"top_k": 20}),
        ({"top_p": 0, "temperature": 0.5}, {"temperature": 0.5, "top_k": 1}),
        ({"top_p": None, "min_p": 0.1}, {"min_p": 0.1}),
        ({"temperature": 0, "do_sample": True}, {}),
        ({"temperature": None, "do_sample": True}, {"temperature": 1.0}),
        ({"temperature": 0.5, "do_sample": False}, {}),
        ({"repetition_penalty": None}, {}),
    ],
)
def test_a_setting_has_the_meaning_that_its_authors_know(
    tmp_path: Path, settings: Any, sampling: Any
) -> None:
    folder = a_model(tmp_path / "m")
    change(folder / SETTINGS, settings)
    assert sampling_settings(load_pretrained(folder).model) == sampling


TEXT = "eos_token_id is '<none>', but must be the id of a token"


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        *[(SETTINGS, f'"eos_token_id": {x}', "eos_token_id is ") for x in ("true", "-1", "{}")],
        (SETTINGS, '"eos_token_id": 700', "eos_token_id is 700"),
        (SETTINGS, '"eos_token_id": [1.0]', "eos_token_id is 1.0"),
        (SETTINGS, '"eos_token_id": "<none>"', TEXT),
        (CONFIG, '"eos_token_id": "<none>"', "eos_token_id"),
        (CONFIG, '"eos_token_id": -1', "eos_token_id is -1"),
        *[(SETTINGS, f'"temperature": {x}', "temperature is ") for x in ('"0.7"', "-1", "NaN")],
        *[(SETTINGS, f'"top_k": {x}', "top_k is ") for x in ("-2", "2.5", "true")],
        (SETTINGS, '"top_p": 1.5', "top_p is 1.5"),
        (SETTINGS, '"min_p": -0.1', "min_p is -0.1"),
        (SETTINGS, '"repetition_penalty": 0', "repetition_penalty is 0"),
        (SETTINGS, '"do_sample": "no"', "do_sample is 'no'"),
        (SETTINGS, '"max_new_tokens": -7', "max_new_tokens"),
        (SETTINGS, '"oops', "cannot be read"),
    ],
)
def test_a_setting_that_cannot_be_obeyed_is_refused_by_file_and_key(
    tmp_path: Path, file: str, text: str, message: str
) -> None:
    path = a_model(tmp_path / "m") / file
    path.write_text(f"{json.dumps(json.loads(path.read_text()))[:-1]}, {text}}}")
    with pytest.raises(ModelError, match=rf"{file}.*{message}"):
        load_pretrained(path.parent)


@pytest.mark.parametrize("text", ["", "[1]", '"x"'])
def test_settings_that_are_no_object_are_an_error_that_names_the_file(
    tmp_path: Path, text: str
) -> None:
    (a_model(tmp_path / "m") / SETTINGS).write_text(text)
    for load in (load_pretrained, load_without_weights):
        with pytest.raises(ModelError, match=SETTINGS):
            load(tmp_path / "m")


def test_settings_that_are_not_obeyed_are_named_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint.note.cache_clear()
    folder = a_model(tmp_path / "m")
    neutral = {"num_beams": 1, "typical_p": 1.0, "no_repeat_ngram_size": 0, "bad_words_ids": []}
    for settings in (neutral, {"typical_p": 0.5, "suppress_tokens": [4], "max_length": 20}):
        change(folder / SETTINGS, settings)
        load_pretrained(folder)
        load_pretrained(folder)
    said = capsys.readouterr().err
    assert said.count("not applied here: ") == 1
    assert (
        "generation_config.json: not applied here: suppress_tokens, max_length, typical_p" in said
    )
