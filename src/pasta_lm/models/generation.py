"""How a model's files say that it is decoded: the ends of a turn, and the sampling of its authors.

The ends are the union of all places that name one. Whatever is read otherwise than it stands is
refused, or said, by file and key.
"""

from __future__ import annotations

from collections.abc import Iterator
from os.path import commonprefix
from pathlib import Path

import transformers
from transformers import PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer
from transformers.utils import GENERATION_CONFIG_NAME

from pasta_lm.errors import ModelError
from pasta_lm.journal import Row
from pasta_lm.language.tags import PIECES
from pasta_lm.models.checkpoint import file_of, first_line, note
from pasta_lm.models.folder import read_object
from pasta_lm.models.pieces import num_token_rows
from pasta_lm.models.thinking import thinking_of

KEY, NO_TOKEN = "eos_token_id", "the id of a token of the model"
_TURN = "(the turn of the model)"  # marks the model's words in a chat template
_BY_NAME = ("<|eot_id|>", "<|eom_id|>")  # Llama 3's, which its files do not always name
_HINT = "mend the file; a key that it does not need can be left out"
_RULES = {  # settings that are obeyed: the minimum, the maximum, and both in words
    "temperature": (0, 1e9, "a number, at least 0"),
    "top_p": (0, 1, "a number from 0 to 1"),
    "top_k": (-1, 1e9, "a whole number; 0 and -1 switch it off"),
    "min_p": (0, 1, "a number from 0 to 1"),
    "repetition_penalty": (1e-9, 1e9, "a number above 0"),
}
_NOT_OBEYED = """bad_words_ids begin_suppress_tokens dola_layers encoder_repetition_penalty
    epsilon_cutoff eta_cutoff exponential_decay_length_penalty forced_bos_token_id
    forced_eos_token_id guidance_scale max_length max_new_tokens max_time min_length min_new_tokens
    no_repeat_ngram_size num_beams num_return_sequences penalty_alpha sequence_bias stop_strings
    suppress_tokens top_h typical_p watermarking_config"""


def read_settings(source: str | Path, revision: str | None = None) -> Row:
    file = file_of(source, GENERATION_CONFIG_NAME, revision)
    data = {} if file is None else read_object(file)
    try:
        transformers.GenerationConfig(**data)
    except (TypeError, ValueError) as exc:
        raise ModelError(f"{file}: {first_line(exc)}", hint=_HINT) from exc
    return data


def settle(model: PreTrainedModel, tokenizer: Tokenizer, folder: str) -> frozenset[int]:
    """Return the ends of a turn; ``generation_config``, of ``folder``, is checked and gets them."""
    ends, config = eos_ids(model, tokenizer, folder), getattr(model, "generation_config", None)
    if config is not None:
        _check_sampling(config, f"{folder}/{GENERATION_CONFIG_NAME}")
        if {*listed(config.eos_token_id)} != ends:
            config.eos_token_id, config._from_model_config = sorted(ends), False
    return ends


def eos_ids(model: PreTrainedModel, tokenizer: Tokenizer, folder: str = "") -> frozenset[int]:
    """Return every id that ends a turn: of the settings, the tokenizer and the chat template."""
    text_config, num_rows = model.config.get_text_config(), num_token_rows(model)
    of_config = [getattr(config, KEY, None) for config in (model.config, text_config)]
    settings = getattr(getattr(model, "generation_config", None), KEY, None)
    file = f"{folder}/{GENERATION_CONFIG_NAME}"
    # What the configuration has was copied from there.
    ends = {*_ids(file, settings, tokenizer)} if settings not in of_config else set[int]()
    if ends and max(ends) >= num_rows:
        raise _refusal(file, KEY, max(ends), NO_TOKEN)
    added = {i: str(token) for i, token in tokenizer.added_tokens_decoder.items()}
    named = [i for i, token in added.items() if token in _BY_NAME]
    others = tokenizer.eos_token_id, turn_end(tokenizer), *named
    ends |= {end for end in others if end is not None and end < num_rows}
    file = f"{folder}/config.json"
    by_class = getattr(type(text_config), KEY, None) if ends else None  # written by no one
    for end in {end for value in of_config for end in _ids(file, value, tokenizer)} - ends:
        if end < num_rows and (end != by_class or end in added):
            ends.add(end)
        elif folder:
            reason = "no special token" if end < num_rows else "no token of the model"
            note(f"{file}: {KEY} {end} is {reason}, and ends nothing")
    return frozenset(ends)


def listed(value: object) -> list[object]:
    return [*value] if isinstance(value, (list, tuple)) else [value] if value is not None else []


def _ids(file: str, value: object, tokenizer: Tokenizer) -> Iterator[int]:
    for end in listed(value):
        token = tokenizer.get_vocab().get(end) if isinstance(end, str) else end
        if type(token) is not int or token < 0:
            raise _refusal(file, KEY, end, NO_TOKEN)
        yield token


def _refusal(file: str, key: str, value: object, rule: str) -> ModelError:
    return ModelError(f"{file}: {key} is {value!r}, but must be {rule}", hint=_HINT)


def turn_end(tokenizer: Tokenizer) -> int | None:
    """Return the added token that the chat template writes behind a turn of the model, if any."""
    template, user = str(tokenizer.chat_template or ""), {"role": "user", "content": "?"}
    turns = [user], [user], [user, {"role": "assistant", "content": _TURN}]
    try:
        opened, closed, whole = (
            str(tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=not i))
            for i, turn in enumerate(turns)
        )
    except Exception:  # there is none, or it is a program that fails
        return None
    after = whole.partition(_TURN)[2].lstrip()
    added = {str(token): i for i, token in tokenizer.added_tokens_decoder.items()}
    end = max((content for content in added if after.startswith(content)), key=len, default="")
    # A template that always opens the next turn: what follows may be that.
    is_sure = opened != closed or any(content in after[len(end) :] for content in added)
    marks, opener = thinking_of(template), opened[len(commonprefix([opened, closed])) :]
    thought = "" if marks is None else marks.start + marks.end + marks.skip
    is_other = not end or end in opener + thought or end in PIECES
    return added[end] if is_sure and not is_other else None


def _check_sampling(config: transformers.GenerationConfig, file: str) -> None:
    if config.do_sample is not None and type(config.do_sample) is not bool:
        raise _refusal(file, "do_sample", config.do_sample, "true or false")
    for name, (minimum, maximum, rule) in _RULES.items():
        if (value := getattr(config, name, None)) is None:
            continue
        is_number = isinstance(value, int | float) and type(value) is not bool
        if not (is_number and minimum <= value <= maximum and (name != "top_k" or value % 1 == 0)):
            raise _refusal(file, name, value, rule)
    if config.top_k is not None:
        config.top_k = int(config.top_k) if config.top_k >= 1 else None  # all tokens
    if config.top_p == 0:  # the likeliest token alone, as in transformers
        config.top_p, config.top_k = None, 1
    settings = config.to_diff_dict()
    if unread := [key for key in _NOT_OBEYED.split() if (settings.get(key) or 1) != 1]:
        note(f"{file}: not applied here: {', '.join(unread)}")


def sampling_settings(model: PreTrainedModel) -> dict[str, float]:
    """Return the sampling of a model's ``generation_config.json`` as of ``SamplingParams``.

    Without ``do_sample`` a temperature counts, as in vLLM; where it is false decoding is greedy.
    """
    config = getattr(model, "generation_config", None)
    settings = {} if config is None else config.to_diff_dict()
    if settings.get("do_sample"):
        settings.setdefault("temperature", 1.0)
    names = _RULES if settings.get("do_sample", True) else ["repetition_penalty"]
    return {name: settings[name] for name in names if settings.get(name)}
