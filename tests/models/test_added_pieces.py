from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PhiConfig,
    PhiForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from pasta_lm.errors import ModelError, VocabularyError
from pasta_lm.interpreter.limits import Limits
from pasta_lm.interpreter.positions import Join, PositionStrategy
from pasta_lm.language.tags import PIECES, PROMISE_OPEN, SYNC, closing_piece
from pasta_lm.models.folder import FILE_NAME, PastaConfig, read_pasta_config, save_model_folder
from pasta_lm.models.load import load_pretrained
from pasta_lm.models.pieces import add_pieces
from pasta_lm.models.thinking import Thinking
from pasta_lm.models.vocabulary import Vocabulary
from tests.adapters import a_base
from tests.small_tokenizers import FAMILIES, add_markers, byte_level

PIECES_ALREADY_THERE = (SYNC, closing_piece(7))


def llama(num_rows: int, *, tied: bool = False) -> PreTrainedModel:
    return a_base(vocab_size=num_rows, tie_word_embeddings=tied)[0]


def rows(model: PreTrainedModel) -> tuple[torch.Tensor, torch.Tensor]:
    """Return float32 [V, hidden] of the input and of the output, copied."""
    modules = (model.get_input_embeddings(), model.get_output_embeddings())
    return tuple(module.weight.detach().clone() for module in modules)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("padding", [0, 20, 68, 100])
def test_a_new_row_is_the_mean_of_the_old_rows_of_its_text(padding: int, tied: bool) -> None:
    tokenizer = byte_level()
    num_old = len(tokenizer)
    model = llama(num_old + padding, tied=tied)
    spelling = {piece: Vocabulary(tokenizer).encode_text(piece) for piece in PIECES}
    old = rows(model)
    ids = add_pieces(model, tokenizer)
    for before, after in zip(old, rows(model), strict=True):
        assert len(after) == max(num_old + padding, num_old + len(PIECES))
        assert torch.equal(after[:num_old], before[:num_old])
        assert torch.equal(after[num_old + len(PIECES) :], before[num_old + len(PIECES) :])
        for piece, token_id in ids.items():
            torch.testing.assert_close(after[token_id], before[spelling[piece]].mean(dim=0))
    assert sorted(ids.values()) == list(range(num_old, num_old + len(PIECES)))


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_tied_stays_tied_and_bfloat16_stays_bfloat16(tied: bool) -> None:
    tokenizer = byte_level()
    model = llama(len(tokenizer), tied=tied).to(torch.bfloat16)
    ids = add_pieces(model, tokenizer)
    into, out = model.get_input_embeddings(), model.get_output_embeddings()
    assert (into.weight is out.weight) == tied
    assert model.config.vocab_size == into.num_embeddings == out.out_features == len(tokenizer)
    row = into.weight[ids[SYNC]]
    assert row.dtype == torch.bfloat16
    assert row.abs().sum() > 0


def test_a_row_of_the_output_bias_is_a_mean_too() -> None:
    tokenizer = byte_level()
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = PhiForCausalLM(PhiConfig(vocab_size=len(tokenizer), **sizes))
    torch.nn.init.normal_(model.lm_head.bias)
    old, spelling = model.lm_head.bias.detach().clone(), Vocabulary(tokenizer).encode_text(SYNC)
    ids = add_pieces(model, tokenizer)
    torch.testing.assert_close(model.lm_head.bias[ids[SYNC]], old[spelling].mean())
    assert len(model.lm_head.bias) == len(tokenizer)


@pytest.mark.parametrize("special", [False, True])
def test_pieces_already_there_keep_their_ids_and_rows(special: bool) -> None:
    tokenizer = byte_level()
    there = add_markers(tokenizer, PIECES_ALREADY_THERE, special=special)
    model = llama(len(tokenizer))
    old = rows(model)
    ids = add_pieces(model, tokenizer)
    assert {piece: ids[piece] for piece in there} == there
    for before, after in zip(old, rows(model), strict=True):
        assert torch.equal(after[: len(before)], before)
    added = tokenizer.backend_tokenizer.get_added_tokens_decoder()
    assert all(added[token_id].special for token_id in ids.values())


def test_a_piece_that_the_model_has_no_row_for_gets_one() -> None:
    tokenizer = byte_level()
    model = llama(len(tokenizer))
    spelling = Vocabulary(tokenizer).encode_text(SYNC)
    before = rows(model)[0]
    there = add_markers(tokenizer, PIECES_ALREADY_THERE)
    ids = add_pieces(model, tokenizer)
    assert ids[SYNC] == there[SYNC]
    torch.testing.assert_close(rows(model)[0][ids[SYNC]], before[spelling].mean(dim=0))


def test_ids_with_gaps_are_refused_before_a_row_is_hurt() -> None:
    data = json.loads(byte_level().backend_tokenizer.to_str())
    last = max(data["model"]["vocab"].values())
    data["model"]["vocab"]["zzz"] = last + 40
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(data)))
    with pytest.raises(VocabularyError, match="'zzz' has"):
        add_pieces(llama(last + 200), tokenizer)


def config_of(piece_ids: Mapping[str, int]) -> PastaConfig:
    limits = Limits(max_tokens=512, max_topic_tokens=9)
    return PastaConfig(piece_ids=piece_ids, positions=PositionStrategy.ORACLE, limits=limits)


def saved(tmp_path: Path, name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    tokenizer = FAMILIES[name]()
    model = llama(len(tokenizer))
    save_model_folder(model, tokenizer, tmp_path, config_of(add_pieces(model, tokenizer)))
    return model, tokenizer


@pytest.mark.parametrize("name", FAMILIES)
def test_a_saved_model_comes_back_with_its_tags(name: str, tmp_path: Path) -> None:
    model, tokenizer = saved(tmp_path, name)
    config = read_pasta_config(tmp_path)
    assert config is not None
    assert config.positions is PositionStrategy.ORACLE
    assert config.limits == Limits(max_tokens=512, max_topic_tokens=9)

    again = AutoTokenizer.from_pretrained(tmp_path)
    added = again.backend_tokenizer.get_added_tokens_decoder()
    for piece, token_id in config.piece_ids.items():
        flags = added[token_id]
        assert (flags.content, flags.special, flags.normalized) == (piece, True, False)
        assert not flags.lstrip
        assert not flags.rstrip
    vocabulary = Vocabulary(again, config.piece_ids)
    text = f"A tip: {PROMISE_OPEN} is no tag\n"
    assert vocabulary.encode_prompt(text) == Vocabulary(tokenizer).encode_prompt(text)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert all(map(torch.equal, rows(loaded), rows(model)))


@pytest.mark.parametrize(
    ("change", "join"),
    [({"join": "recompute"}, Join.RECOMPUTE), ({}, Join.SHARED), ({"join": None}, Join.SHARED)],
)
def test_a_folder_says_its_join_and_an_older_one_has_the_shared_one(
    tmp_path: Path, change: dict[str, str], join: Join
) -> None:
    saved(tmp_path, "byte_level")
    data = json.loads((tmp_path / FILE_NAME).read_text()) | {"positions": "continue"} | change
    data = {key: value for key, value in data.items() if value is not None}
    (tmp_path / FILE_NAME).write_text(json.dumps(data))
    assert getattr(read_pasta_config(tmp_path), "join", None) is join


def test_a_model_without_tags_is_not_saved_as_one_that_has_them(tmp_path: Path) -> None:
    assert read_pasta_config(tmp_path) is None
    with pytest.raises(VocabularyError, match="68 of 68"):
        save_model_folder(*a_base(), tmp_path, config_of({}))
    assert not list(tmp_path.iterdir())


Change = Callable[[dict[str, object]], object]
FAULTS: dict[str, tuple[Change, type[ModelError], str]] = {
    "keys missing": (lambda c: c.pop("positions"), ModelError, "does not say: positions"),
    "a later version": (lambda c: c.update(language_version=2), ModelError, "version 2"),
    "an unknown strategy": (lambda c: c.update(positions="guess"), ModelError, "strategy 'guess'"),
    "an unknown join": (lambda c: c.update(join="split"), ModelError, "no join 'split'"),
    "a join with gaps": (lambda c: c.update(join="recompute"), ModelError, "'oracle' does"),
    "an unknown limit": (lambda c: c.update(limits={"max_token": 3}), ModelError, "some of"),
    "a limit that is none": (lambda c: c.update(limits={"max_tokens": 0}), ModelError, "at least"),
    "a limit of words": (lambda c: c.update(limits={"max_tokens": "9"}), ModelError, "'9'"),
    "a bias that is none": (lambda c: c.update(fork_bias=float("nan")), ModelError, "fork_bias"),
    "thinks that is none": (lambda c: c.update(thinks="yes"), ModelError, "thinks is"),
    "marks that are none": (lambda c: c.update(thinking={"end": 3}), ModelError, "texts"),
    "ids that are none": (lambda c: c.update(piece_ids={SYNC: "x"}), ModelError, "piece_ids"),
    "a piece missing": (lambda c: c["piece_ids"].pop(SYNC), VocabularyError, "'<sync/>'"),
    "a piece elsewhere": (lambda c: c["piece_ids"].update({SYNC: 3}), VocabularyError, "token 3, "),
}


@pytest.mark.parametrize(("change", "error", "message"), FAULTS.values(), ids=FAULTS)
def test_what_is_wrong_with_a_folder_is_said(
    tmp_path: Path, change: Change, error: type[ModelError], message: str
) -> None:
    saved(tmp_path, "byte_level")
    config = json.loads((tmp_path / FILE_NAME).read_text())
    change(config)
    (tmp_path / FILE_NAME).write_text(json.dumps(config))
    with pytest.raises(error, match=message):
        read_pasta_config(tmp_path)


@pytest.mark.parametrize("name", [FILE_NAME, "tokenizer.json"])
def test_a_broken_file_of_a_folder_is_named(tmp_path: Path, name: str) -> None:
    saved(tmp_path, "byte_level")
    for text in ("{", "[]"):
        (tmp_path / name).write_text(text)
        with pytest.raises(ModelError, match=f"{name} (cannot be read|holds no JSON object)"):
            read_pasta_config(tmp_path)


@pytest.mark.parametrize("thinks", [True, False, None])
def test_a_folder_says_whether_its_model_thinks_and_how_it_marks_a_thought(
    tmp_path: Path, thinks: bool | None
) -> None:
    tokenizer = FAMILIES["byte_level"]()
    model = llama(len(tokenizer))
    config = config_of(add_pieces(model, tokenizer))
    config = replace(config, thinks=thinks, thinking=Thinking("<hm>", "</hm>", "<so>"))
    save_model_folder(model, tokenizer, tmp_path, config)
    assert read_pasta_config(tmp_path) == config
    vocabulary = load_pretrained(tmp_path).vocabulary
    assert (vocabulary.thinks, vocabulary.thinking) == (thinks, config.thinking)
