"""The ends of a turn, wherever they are named, and the settings of ``generation_config.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, LlamaConfig

from pasta_lm.errors import ModelError
from pasta_lm.language.tags import SYNC
from pasta_lm.learn.train.learner import load_learner
from pasta_lm.models import checkpoint
from pasta_lm.models.generation import sampling_settings, turn_end
from pasta_lm.models.load import load_pretrained, load_without_weights
from pasta_lm.strategies.model import Pasta
from tests.adapters import a_base_folder

WORDS = ["<|user|>", "<|im_end|>", "<|im_start|>", "<|eot_id|>", "<think>", "</think>", SYNC]
SETTINGS, CONFIG = "generation_config.json", "config.json"
MANY = "{% for m in messages %}{{ m.role }} {{ m.content }}"
OPEN = "{% endfor %}{% if add_generation_prompt %}<|user|>{% endif %}"
CHATML = MANY.replace("{{ m.role", "<|im_start|>{{ m.role") + "<|im_end|>\n" + OPEN


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a random model whose tokenizer has the special tokens of several makers."""
    folder = a_base_folder(tmp_path / "m", vocab_size=700)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([word for word in WORDS if word != "<|eot_id|>"], special_tokens=True)
    tokenizer.save_pretrained(folder)
    return folder


def change(file: Path, settings: dict[str, object]) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))


@pytest.mark.parametrize("load", [load_pretrained, load_without_weights])
@pytest.mark.parametrize(
    ("settings", "config", "more"),
    [
        ([7, 9, 7], 1, [1, 7, 9]),
        ("<|user|>", 1, [1, "<|user|>"]),
        (["<|user|>", 7], 1, [1, "<|user|>", 7]),
        (None, None, []),
        (7, [8, 9], [7, 8, 9]),
        (None, 699, [699]),
        (None, 700, []),  # there is no such token: said
    ],
)
def test_the_ends_are_those_of_all_files_together(
    folder: Path, load: Any, settings: object, config: object, more: list[int | str]
) -> None:
    change(folder / SETTINGS, {"eos_token_id": settings})
    change(folder / CONFIG, {"eos_token_id": config})
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = {tokenizer.convert_tokens_to_ids(x) if isinstance(x, str) else x for x in more}
    loaded = load(folder)
    assert loaded.eos_ids == ids | {tokenizer.eos_token_id}
    assert {*loaded.model.generation_config.eos_token_id} == loaded.eos_ids


def test_decoding_ends_at_each_and_training_learns_that_of_the_template(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(CHATML)
    change(folder / SETTINGS, {"eos_token_id": 7})
    model, learner = Pasta.from_pretrained(folder), load_learner(str(folder))
    assert learner.eos_id == turn_end(learner.tokenizer) != learner.tokenizer.eos_token_id
    assert {7, learner.eos_id, learner.tokenizer.eos_token_id} == model.engine.loaded.eos_ids
    for token in model.engine.loaded.eos_ids:
        assert model.generate("Hi", max_tokens=5, logit_bias={token: 1e6}).finish_reason == "stop"


@pytest.mark.parametrize(
    ("template", "end"),
    [
        (CHATML, "<|im_end|>"),
        (CHATML.replace("<|im_end|>", "  <|im_end|>"), "<|im_end|>"),
        (CHATML.replace(OPEN, "{% endfor %}<|im_start|>"), "<|im_end|>"),  # always opens a turn
        (MANY + "{{ eos_token }}" + OPEN, "</s>"),
        (MANY + OPEN, None),
        (MANY + "{% endfor %}<|user|>", None),  # the next turn's beginning
        (MANY + "</think>" + OPEN, None),  # a thought's end
        (MANY + SYNC + OPEN, None),  # a tag
        (MANY + "." + OPEN, None),
        ("{{ raise_exception('no') }}", None),
    ],
)
def test_the_end_that_a_chat_template_writes_is_found(
    folder: Path, template: str, end: str | None
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert turn_end(tokenizer) is None
    tokenizer.chat_template = template
    assert turn_end(tokenizer) == tokenizer.get_vocab().get(end)


def test_llama_s_end_is_known_by_name_and_a_class_s_default_is_no_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens("<|eot_id|>", special_tokens=True)
    tokenizer.save_pretrained(folder)
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
        ({"temperature": 0.5, "do_sample": False, "repetition_penalty": None}, {}),
    ],
)
def test_a_setting_has_its_meaning_in_transformers(
    folder: Path, settings: Any, sampling: Any
) -> None:
    change(folder / SETTINGS, settings)
    assert sampling_settings(load_pretrained(folder).model) == sampling


WRONG = {
    "eos_token_id": ("true", "-1", "{}", "700", "[1.0]", '"<none>"', "[7, null]"),
    "temperature": ('"0.7"', "-1", "NaN"),
    "top_k": ("-2", "2.5", "true"),
    "top_p": ("1.5",),
    "min_p": ("-0.1",),
    "repetition_penalty": ("0",),
    "do_sample": ('"no"', "1"),
    "max_new_tokens": ("-7",),
}


@pytest.mark.parametrize(
    ("file", "key", "text"),
    [
        *[(SETTINGS, key, text) for key, texts in WRONG.items() for text in texts],
        *[(CONFIG, "eos_token_id", text) for text in ('"</s>"', "-1", "true")],
    ],
)
def test_a_setting_that_cannot_be_obeyed_is_refused_by_file_and_key(
    folder: Path, file: str, key: str, text: str
) -> None:
    settings = json.dumps(json.loads((folder / file).read_text()))
    (folder / file).write_text(f'{settings[:-1]}, "{key}": {text}}}')
    with pytest.raises(ModelError, match=rf"{file}.*{key}"):
        load_pretrained(folder)


@pytest.mark.parametrize("text", ["", "{oops", "[1]", '"x"'])
def test_settings_that_are_no_object_are_an_error_that_names_the_file(
    folder: Path, text: str
) -> None:
    (folder / SETTINGS).write_text(text)
    for load in (load_pretrained, load_without_weights):
        with pytest.raises(ModelError, match=SETTINGS):
            load(folder)


def test_settings_that_are_not_obeyed_are_named_once(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint.note.cache_clear()
    neutral = {"num_beams": 1, "typical_p": 1.0, "no_repeat_ngram_size": 0, "bad_words_ids": []}
    for settings in (neutral, {"typical_p": 0.5, "suppress_tokens": [4], "max_length": 20}):
        change(folder / SETTINGS, settings)
        load_pretrained(folder)
        load_pretrained(folder)
    said = capsys.readouterr().err
    assert said.count(f"{SETTINGS}: not applied here: max_length, suppress_tokens, typical_p") == 1
    assert said.count("not applied") == 1
