"""How a model's files say that it is decoded: the ends of a turn, and the sampling of its authors.

The ends are the union of all places that name one. Whatever is read otherwise than it stands is
refused, or said, by file and key.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from os.path import commonprefix
from pathlib import Path

import transformers
from transformers.utils import GENERATION_CONFIG_NAME
from transformers.utils.hub import cached_file

from pasta_lm.errors import ModelError
from pasta_lm.journal import Row
from pasta_lm.language.tags import PIECES
from pasta_lm.models.checkpoint import first_line, note
from pasta_lm.models.folder import read_object
from pasta_lm.models.pieces import num_token_rows
from pasta_lm.models.thinking import thinking_of

CONFIG_NAME, KEY = "config.json", "eos_token_id"
_TURN = "(the turn of the model)"  # marks the model's words in a chat template
_BY_NAME = ("<|eot_id|>", "<|eom_id|>")  # Llama 3's, which its files do not always name
_HINT = "mend the file; a key that it does not need can be left out"
_RULES = {  # of the settings that are obeyed: the least and the largest value, and both in words
    "temperature": (0, 1e9, "a number, at least 0"),
    "top_p": (0, 1, "a number from 0 to 1"),
    "top_k": (-1, 1e9, "a whole number; 0 and -1 switch it off"),
    "min_p": (0, 1, "a number from 0 to 1"),
    "repetition_penalty": (1e-9, 1e9, "a number above 0"),
}
_AT_ZERO = """no_repeat_ngram_size encoder_no_repeat_ngram_size epsilon_cutoff eta_cutoff
    min_length min_new_tokens diversity_penalty penalty_alpha"""
_AT_ONE = """typical_p top_h num_beams num_beam_groups encoder_repetition_penalty guidance_scale
    num_return_sequences"""
_WITHOUT = """bad_words_ids sequence_bias suppress_tokens begin_suppress_tokens forced_bos_token_id
    forced_eos_token_id max_length max_new_tokens max_time stop_strings dola_layers
    exponential_decay_length_penalty watermarking_config"""
# Settings that transformers obeys and this package does not, with the value that changes nothing.
_NOT_OBEYED = dict.fromkeys(_AT_ZERO.split(), 0) | dict.fromkeys(_AT_ONE.split(), 1)
_NOT_OBEYED |= dict.fromkeys(_WITHOUT.split(), None)  # type: ignore[arg-type]


def check_settings(source: str | Path, revision: str | None = None) -> None:
    """Refuse settings in a folder or on the hub that transformers would ignore or misread."""
    if settings := _file(source, GENERATION_CONFIG_NAME, revision):
        try:
            transformers.GenerationConfig(**read_object(settings))
        except (TypeError, ValueError) as exc:
            raise ModelError(f"{settings}: {first_line(exc)}", hint=_HINT) from exc
    file, data = _file(source, CONFIG_NAME, revision), Row()
    with suppress(ModelError):  # transformers says what is wrong with it
        data = read_object(file) if file else data
    for part in (data, data.get("text_config")):
        value = part.get(KEY) if isinstance(part, dict) else None
        for end in value if isinstance(value, list) else [value]:
            if end is not None and (type(end) is not int or end < 0):
                raise _no_end(f"{file}: {KEY}", end)


def _file(source: str | Path, name: str, revision: str | None) -> Path | None:
    path = Path(source) / name
    if path.is_file() or Path(source).exists():
        return path if path.is_file() else None
    missing, offline = (
        "_raise_exceptions_for_missing_entries",
        "_raise_exceptions_for_connection_errors",
    )
    with suppress(OSError, ValueError):  # no hub id, or one that is private
        found = cached_file(
            str(source), name, revision=revision, **{missing: False, offline: False}
        )
        return None if found is None else Path(found)
    return None


def _no_end(place: str, end: object) -> ModelError:
    return ModelError(f"{place} has {end!r}, which is no token of the model", hint=_HINT)


def settle(
    model: transformers.PreTrainedModel,
    tokenizer: transformers.PreTrainedTokenizerBase,
    place: str,
) -> frozenset[int]:
    """Return the ends of a turn; ``generation_config`` is checked and has them from now on.

    Raises:
        ModelError: a setting of the file at ``place`` cannot be obeyed as it stands.
    """
    ends, config = eos_ids(model, tokenizer, place), getattr(model, "generation_config", None)
    if config is None:
        return ends
    _check_sampling(config, f"{place}/{GENERATION_CONFIG_NAME}")
    if {*listed(config.eos_token_id)} != ends:
        config.eos_token_id, config._from_model_config = sorted(ends), False
    return ends


def eos_ids(
    model: transformers.PreTrainedModel,
    tokenizer: transformers.PreTrainedTokenizerBase | None,
    place: str = "",
) -> frozenset[int]:
    """Return every id that ends a turn: of the settings, the tokenizer and the chat template."""
    config, text_config = model.config, model.config.get_text_config()
    of_config = [getattr(part, KEY, None) for part in (config, text_config)]
    settings = getattr(getattr(model, "generation_config", None), KEY, None)
    label = f"{place}/{GENERATION_CONFIG_NAME}: {KEY}"
    ends = {*_ids(label, settings, tokenizer)}
    if settings in of_config:
        ends.clear()  # they were copied from there
    if far := [end for end in ends if end >= num_token_rows(model)]:
        raise _no_end(label, far[0])
    ends.update(() if tokenizer is None else _of_tokenizer(tokenizer))
    added = {} if tokenizer is None else tokenizer.added_tokens_decoder
    by_class = getattr(type(text_config), KEY, None) if ends else None  # written by no one
    label = f"{place}/{CONFIG_NAME}: {KEY}"
    for end in {end for value in of_config for end in _ids(label, value, tokenizer)} - ends:
        is_there = end < num_token_rows(model)
        if is_there and (end != by_class or end in added):
            ends.add(end)
        elif place:
            reason = "no special token" if is_there else "no token of the model"
            note(f"{label} {end} is {reason}, and ends nothing")
    return frozenset(ends)


def _of_tokenizer(tokenizer: transformers.PreTrainedTokenizerBase) -> Iterator[int]:
    if tokenizer.eos_token_id is not None:
        yield tokenizer.eos_token_id
    yield from (i for i, token in tokenizer.added_tokens_decoder.items() if str(token) in _BY_NAME)
    if (end := turn_end(tokenizer)) is not None:
        yield end


def listed(value: object) -> list[object]:
    return [*value] if isinstance(value, (list, tuple)) else [value] if value is not None else []


def _ids(
    label: str, value: object, tokenizer: transformers.PreTrainedTokenizerBase | None
) -> Iterator[int]:
    vocab = {} if tokenizer is None else tokenizer.get_vocab()
    for end in listed(value):
        token = vocab.get(end) if isinstance(end, str) else end
        if type(token) is not int or token < 0:
            raise _no_end(label, end)
        yield token


def turn_end(tokenizer: transformers.PreTrainedTokenizerBase) -> int | None:
    """Return the added token that the chat template writes behind a turn of the model, if any."""

    def render(*turns: tuple[str, str], is_open: bool = False) -> str:
        messages = [{"role": role, "content": content} for role, content in turns]
        return str(
            tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=is_open)
        )

    if not tokenizer.chat_template:
        return None
    user = "user", "?"
    try:
        _, _, after = render(user, ("assistant", _TURN)).partition(_TURN)
        closed, opened = render(user), render(user, is_open=True)
    except Exception:  # a template is a program of the model's authors
        return None
    added = {str(token): i for i, token in tokenizer.added_tokens_decoder.items()}
    behind = [content for content in added if after.lstrip().startswith(content)]
    end = max(behind, key=len, default="")
    # What opens the next turn is no end, nor is a mark that ends a thought, or a tag.
    opener = opened[len(commonprefix([opened, closed])) :]
    if closed == opened and not any(content in after.lstrip()[len(end) :] for content in added):
        return None
    marks = thinking_of(str(tokenizer.chat_template))
    thought = "" if marks is None else marks.start + marks.end + marks.skip
    return None if end in opener + thought or end in PIECES else added[end]


def _check_sampling(config: transformers.GenerationConfig, file: str) -> None:
    if config.do_sample not in (None, True, False) or type(config.do_sample) is int:
        raise _not_obeyed(file, "do_sample", config.do_sample, "true or false")
    for name, (least, largest, rule) in _RULES.items():
        if (value := getattr(config, name, None)) is None:
            continue
        is_number = isinstance(value, int | float) and type(value) is not bool
        if not (is_number and least <= value <= largest and (name != "top_k" or value % 1 == 0)):
            raise _not_obeyed(file, name, value, rule)
    if config.top_k is not None:
        config.top_k = int(config.top_k) if config.top_k >= 1 else None  # all tokens
    if config.top_p == 0:  # the likeliest token alone, as in transformers
        config.top_p, config.top_k = None, 1
    unread = [
        name
        for name, value in config.to_diff_dict().items()
        if name in _NOT_OBEYED and value not in (None, [], {}, _NOT_OBEYED[name])
    ]
    if unread:
        note(f"{file}: not applied here: {', '.join(sorted(unread))}")


def _not_obeyed(file: str, name: str, value: object, rule: str) -> ModelError:
    return ModelError(f"{file}: {name} is {value!r}, but must be {rule}", hint=_HINT)


def sampling_settings(model: transformers.PreTrainedModel) -> dict[str, float]:
    """Return the sampling of a model's ``generation_config.json`` as of ``SamplingParams``.

    Without ``do_sample`` a temperature counts, as in vLLM; where it is false decoding is greedy.
    """
    config = getattr(model, "generation_config", None)
    settings = {} if config is None else config.to_diff_dict()
    names = ["repetition_penalty"]
    if settings.get("do_sample", True):
        settings.setdefault("temperature", 1.0 if settings.get("do_sample") else None)
        names += ["temperature", "top_p", "top_k", "min_p"]
    return {name: settings[name] for name in names if settings.get(name)}
