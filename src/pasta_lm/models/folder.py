"""A model folder: all that transformers saves, and ``pasta_config.json`` with the training."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import transformers

from pasta_lm.errors import ModelError, UsageError, VocabularyError, cause
from pasta_lm.interpreter.limits import Limits
from pasta_lm.interpreter.positions import Join, PositionStrategy, check_join
from pasta_lm.journal import Row
from pasta_lm.models.encoded import check_piece_ids
from pasta_lm.models.thinking import Thinking

FILE_NAME = "pasta_config.json"
LANGUAGE_VERSION = 1
_KEYS = {"language_version", "piece_ids", "positions", "limits"}
PASTA = "pasta"
MARKS = ("start", "end", "skip")  # around a thought
TAUGHT = (PASTA, "apar", "sot")  # the trained strategies; the first is the default


@dataclass(frozen=True, slots=True, kw_only=True)
class PastaConfig:
    """The training of a model in the language."""

    piece_ids: Mapping[str, int]  # each tag piece's token id
    positions: PositionStrategy
    limits: Limits  # those that its training data keep
    trained_strategy: str = PASTA
    join: Join = Join.SHARED
    fork_bias: float = 0.0  # chosen on development prompts, see ``SamplingParams``
    thinks: bool | None = False  # whether it thinks before an answer; None: as its template says
    thinking: Thinking | None = None  # the marks of thoughts; None: those of its template


def save_model_folder(
    model: transformers.PreTrainedModel, tokenizer: transformers.PreTrainedTokenizerFast,
    path: Path, config: PastaConfig,
) -> None:  # fmt: skip
    check_piece_ids(config.piece_ids)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    write_pasta_config(path, config)


def write_pasta_config(
    path: Path, config: PastaConfig | None, more: Mapping[str, object] | None = None
) -> None:
    data = {**(more or {}), **({} if config is None else record_of(config))}
    text = json.dumps(data, indent=2, ensure_ascii=False)
    (path / FILE_NAME).write_text(text + "\n", encoding="utf-8")


def record_of(config: PastaConfig) -> dict[str, object]:
    data: dict[str, object] = {
        "language_version": LANGUAGE_VERSION, "positions": str(config.positions),
        "join": str(config.join), "limits": asdict(config.limits),
        "piece_ids": dict(config.piece_ids),
    }  # fmt: skip
    if config.fork_bias:
        data["fork_bias"] = config.fork_bias
    if config.trained_strategy != PASTA:
        data["taught"] = config.trained_strategy
    if config.thinks is not False:
        data["thinks"] = config.thinks
    if config.thinking is not None:
        data["thinking"] = {name: getattr(config.thinking, name) for name in MARKS}
    return data


def read_pasta_config(path: Path) -> PastaConfig | None:
    file = path / FILE_NAME
    data = read_object(file) if file.is_file() else {}
    if data.keys() <= {"base"}:  # no such file, or an adapter without tags
        return None
    if missing := _KEYS - data.keys():
        raise ModelError(f"{file} does not say: {', '.join(sorted(missing))}")
    if data["language_version"] != LANGUAGE_VERSION:
        versions = f"{data['language_version']} of the language; this is version {LANGUAGE_VERSION}"
        hint = "install the release of pasta-lm that the model was trained with"
        raise ModelError(f"{file} is for version {versions}", hint=hint)
    positions = _one_of(file, "no position strategy", data["positions"], list(PositionStrategy))
    join = _one_of(file, "no join", data.get("join", Join.SHARED), list(Join))
    fork_bias = data.get("fork_bias", 0.0)
    if type(fork_bias) not in {int, float} or not math.isfinite(fork_bias):
        raise ModelError(f"{file}: fork_bias is no number: {fork_bias!r}")
    if (thinks := data.get("thinks", False)) not in (True, False, None):
        raise ModelError(f"{file}: thinks is true, false or null, not {thinks!r}")
    bounds, known = data["limits"], {field.name for field in fields(Limits)}
    if not isinstance(bounds, dict) or not bounds.keys() <= known:
        raise ModelError(f"{file}: limits must be some of {', '.join(sorted(known))}")
    if wrong := [name for name, bound in bounds.items() if type(bound) not in {int, type(None)}]:
        raise ModelError(f"{file}: limit {wrong[0]} is no whole number: {bounds[wrong[0]]!r}")
    try:
        check_join(Join(join), PositionStrategy(positions))
        limits = Limits(**data["limits"])
    except UsageError as exc:
        raise ModelError(f"{file}: {exc.message}") from exc
    return PastaConfig(
        piece_ids=_piece_ids(file, data), positions=PositionStrategy(positions), limits=limits,
        trained_strategy=_one_of(file, "taught", data.get("taught", PASTA), TAUGHT),
        join=Join(join), fork_bias=fork_bias, thinks=thinks,
        thinking=_thinking(file, data.get("thinking")),
    )  # fmt: skip


def _thinking(file: Path, marks: object) -> Thinking | None:
    if marks is None:
        return None
    texts = {name: text for name, text in marks.items()} if isinstance(marks, dict) else {}
    if not {"start", "end"} <= texts.keys() <= {*MARKS} or {*map(type, texts.values())} != {str}:
        raise ModelError(f"{file}: thinking has the texts {', '.join(MARKS)}, not {marks!r}")
    return Thinking(**texts)


def _piece_ids(file: Path, data: Row) -> dict[str, int]:
    ids = data["piece_ids"]
    if not isinstance(ids, dict) or {type(number) for number in ids.values()} - {int}:
        raise ModelError(f"{file}: piece_ids must give each tag piece a token id")
    check_piece_ids(ids)
    if "base" not in data:  # an adapter has the tokenizer of its base, checked when both are read
        tokenizer = file.with_name("tokenizer.json")  # not built: its added tokens are enough
        tokens = read_object(tokenizer)
        try:
            check_same_ids(ids, {token["content"]: token["id"] for token in tokens["added_tokens"]})
        except (KeyError, TypeError) as exc:
            raise ModelError(f"{tokenizer} is no tokenizer: it lacks added_tokens") from exc
    return ids


def read_object(file: Path) -> Row:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise ModelError(f"{file} cannot be read: {cause(exc)}") from exc
    if not isinstance(data, dict):
        raise ModelError(f"{file} holds no JSON object")
    return data


def _one_of(file: Path, label: str, data: object, names: Collection[str]) -> str:
    if data not in names:
        raise ModelError(f"{file}: {label} {data!r}", hint=f"one of {', '.join(names)}")
    return str(data)


def check_same_ids(piece_ids: Mapping[str, int], ids: Mapping[str, int]) -> None:
    for piece, token_id in piece_ids.items():
        if ids.get(piece) != token_id:
            says = f"{FILE_NAME} says that {piece!r} is token {token_id}"
            reason = f"{says}, but the tokenizer has {ids.get(piece, 'no such token')}"
            hint = "keep the files of a model folder together as they were saved"
            raise VocabularyError(reason, hint=hint)
