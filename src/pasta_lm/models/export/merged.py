"""Write a model and its adapter as one folder that transformers, vLLM and SGLang load."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError
from transformers import PreTrainedModel

from pasta_lm.errors import ModelError, UsageError, cause
from pasta_lm.models.export.writing import (
    Export,
    read_exportable,
    refuse_existing,
    written_whole,
)
from pasta_lm.models.folder import write_pasta_config
from pasta_lm.models.load import Pretrained
from pasta_lm.models.settings import DTYPES, rope_parameters


def export_merged(source: str | Path, out: Path, dtype: str = "bfloat16") -> Export:
    """Write a model folder without adapters, complete or not at all.

    It has the weights as safetensors, the tokenizer with the tag pieces as special tokens, the chat
    template, ``generation_config.json`` and, if the source says how it was trained,
    ``pasta_config.json``. Tied matrices stay tied; padded ones stay padded. The dtype is 'float32',
    'bfloat16' or 'float16'.
    """
    if dtype not in DTYPES:
        raise UsageError(f"unknown dtype {dtype!r}", hint=f"one of {', '.join(DTYPES)}")
    refuse_existing(out)
    pretrained = read_exportable(source, DTYPES[dtype])
    num_bytes = sum(weight.nbytes for weight in pretrained.model.parameters())
    with written_whole(out, num_bytes) as part:
        _write_folder(pretrained, part)
    return Export(out, pretrained, sum(file.stat().st_size for file in out.iterdir()), dtype)


def _write_folder(pretrained: Pretrained, folder: Path) -> None:
    try:
        pretrained.model.save_pretrained(folder)
        pretrained.tokenizer.save_pretrained(folder)
    except ValueError as exc:  # such as settings of generation that contradict each other
        first_line = str(exc).strip().splitlines()[0]
        raise ModelError(f"transformers refuses to save the model: {first_line}") from exc
    except SafetensorError as exc:  # a full disk is not an OSError there
        raise OSError(cause(exc)) from exc
    if pretrained.config is not None:
        write_pasta_config(folder, pretrained.config)
    _change(folder / "config.json", _settings_of_version_4(pretrained.model))
    # Version 5 of transformers writes the name of a class that version 4 does not have.
    _change(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})


def _settings_of_version_4(model: PreTrainedModel) -> dict[str, object]:
    """Return settings under their names in version 4 of transformers, which some servers have.

    It knows no ``rope_parameters``, and would silently fall back to another base frequency.
    """
    settings: dict[str, object] = {"torch_dtype": str(model.dtype).removeprefix("torch.")}
    rope, *others = rope_parameters(model.config)
    if "rope_theta" in rope and not others:  # else there is none, or one for each kind of layer
        settings["rope_theta"] = rope["rope_theta"]
        scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
        if scaling.get("rope_type", "default") != "default":
            settings["rope_scaling"] = scaling
    return settings


def _change(file: Path, settings: dict[str, object]) -> None:
    data = json.loads(file.read_text("utf-8")) | settings
    file.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
