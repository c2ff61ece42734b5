"""Write and read a model folder: what transformers saves, and ``pasta_config.json`` beside it.

``pasta_config.json`` holds what a model was taught: the version of the language, the token id of
each tag piece, the position strategy and the limits of its training.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from pasta_lm.engines.encoded_document import check_piece_ids
from pasta_lm.errors import ModelError, UsageError, VocabularyError
from pasta_lm.interpreter.limits import Limits
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.language.tags import PIECES

FILE_NAME = "pasta_config.json"
LANGUAGE_VERSION = 1
_KEYS = {"language_version", "piece_ids", "positions", "limits"}
PASTA = "pasta"
TAUGHT = (PASTA, "apar", "sot")
"""The strategies that a model can be taught; a folder that does not say was taught the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastaConfig:
    """What a model was taught of the language."""

    piece_ids: Mapping[str, int]
    """Each tag piece's token id."""
    positions: PositionStrategy
    """The strategy that it was trained with."""
    limits: Limits
    """The limits that its training data keep."""
    trained_strategy: str = PASTA
    """The strategy that it was taught."""
    language_version: int = LANGUAGE_VERSION


def save_model_folder(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    path: Path | str,
    *,
    positions: PositionStrategy,
    limits: Limits,
    trained_strategy: str = PASTA,
) -> None:
    """Write all that is needed to decode with a model: weights, tokenizer, what it was taught.

    Raises:
        VocabularyError: a tag piece has no token.
    """
    ids = tokenizer.get_vocab()
    piece_ids = {piece: ids[piece] for piece in PIECES if piece in ids}
    check_piece_ids(piece_ids)
    path = Path(path)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    config = {
        "language_version": LANGUAGE_VERSION,
        "positions": str(positions),
        "limits": asdict(limits),
        "piece_ids": piece_ids,
    }
    if trained_strategy != PASTA:
        config["taught"] = trained_strategy
    text = json.dumps(config, indent=2, ensure_ascii=False)
    (path / FILE_NAME).write_text(text + "\n", encoding="utf-8")


def read_pasta_config(path: Path) -> PastaConfig | None:
    """Return what a model folder says that its model was taught; None: it says nothing.

    Raises:
        ModelError: the file is broken, incomplete, or of a later version of the language.
        VocabularyError: tag pieces are missing, or the tokenizer has them elsewhere.
    """
    file = path / FILE_NAME
    if not file.is_file():
        return None
    data = _read_object(file)
    if missing := _KEYS - data.keys():
        raise ModelError(f"{file} does not say: {', '.join(sorted(missing))}")
    if data["language_version"] != LANGUAGE_VERSION:
        raise ModelError(
            f"{file} is for version {data['language_version']} of the language; "
            f"this is version {LANGUAGE_VERSION}",
            hint="install the release of pasta-lm that the model was trained with",
        )
    piece_ids = _read_piece_ids(file, data["piece_ids"])
    _check_same(piece_ids, _ids_in_tokenizer_file(path / "tokenizer.json"))
    return PastaConfig(
        piece_ids=piece_ids,
        positions=_read_positions(file, data["positions"]),
        limits=_read_limits(file, data["limits"]),
        trained_strategy=_read_taught(file, data.get("taught", PASTA)),
    )


def _read_object(file: Path) -> dict[str, Any]:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise ModelError(f"{file} cannot be read: {exc}") from exc
    if not isinstance(data, dict):
        raise ModelError(f"{file} holds no JSON object")
    return data


def _read_piece_ids(file: Path, data: object) -> dict[str, int]:
    if not isinstance(data, dict) or not all(type(token_id) is int for token_id in data.values()):
        raise ModelError(f"{file}: piece_ids must give each tag piece a token id")
    check_piece_ids(data)
    return data


def _read_positions(file: Path, data: object) -> PositionStrategy:
    names = [str(strategy) for strategy in PositionStrategy]
    if data not in names:
        raise ModelError(
            f"{file}: no position strategy {data!r}", hint=f"one of {', '.join(names)}"
        )
    return PositionStrategy(str(data))


def _read_taught(file: Path, data: object) -> str:
    if data not in TAUGHT:
        raise ModelError(f"{file}: taught {data!r}", hint=f"one of {', '.join(TAUGHT)}")
    return str(data)


def _read_limits(file: Path, data: object) -> Limits:
    names = {field.name for field in fields(Limits)}
    if not isinstance(data, dict) or not data.keys() <= names:
        raise ModelError(f"{file}: limits must be some of {', '.join(sorted(names))}")
    if wrong := [name for name, bound in data.items() if type(bound) not in {int, type(None)}]:
        raise ModelError(f"{file}: limit {wrong[0]} is no whole number: {data[wrong[0]]!r}")
    try:
        return Limits(**data)
    except UsageError as exc:
        raise ModelError(f"{file}: {exc.message}") from exc


def _ids_in_tokenizer_file(file: Path) -> dict[str, int]:
    """Return the added tokens of a saved tokenizer, without building it."""
    try:
        return {token["content"]: token["id"] for token in _read_object(file)["added_tokens"]}
    except (KeyError, TypeError) as exc:
        raise ModelError(f"{file} is no tokenizer: it lacks added_tokens") from exc


def _check_same(piece_ids: Mapping[str, int], ids: Mapping[str, int]) -> None:
    for piece, token_id in piece_ids.items():
        if ids.get(piece) != token_id:
            raise VocabularyError(
                f"{FILE_NAME} says that {piece!r} is token {token_id}, "
                f"but the tokenizer has {ids.get(piece, 'no such token')}",
                hint="keep the files of a model folder together as they were saved",
            )
