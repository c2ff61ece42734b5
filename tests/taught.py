"""Vocabularies with tags, in the ways in which a tokenizer can come to have them."""

from __future__ import annotations

import json

from tokenizers import Tokenizer, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from pasta_lm.language.tags import PIECES, SYNC
from pasta_lm.models.vocabulary import Vocabulary
from tests.small_tokenizers import FAMILIES, add_markers

CHAT = "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}<s>model:"


def taught(name: str, *, special: bool = True) -> Vocabulary:
    tokenizer = FAMILIES[name]()
    tokenizer.chat_template = CHAT
    return Vocabulary(tokenizer, add_markers(tokenizer, PIECES, special=special))


def trained_in(name: str) -> Vocabulary:
    """Make tags out of words of the model's own vocabulary, as a training on tags would."""
    tokenizer = FAMILIES[name]()
    if "byte_level" in name:  # its regular expression would split every tag anyway
        backend = tokenizer.backend_tokenizer
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    data = json.loads(tokenizer.backend_tokenizer.to_str())
    model, first = data["model"], len(data["model"]["vocab"])
    spelled = [piece.replace(" ", "\u0120" if "byte" in name else "\u2581") for piece in PIECES]
    if model["type"] == "Unigram":
        model["vocab"] += [[piece, -0.001] for piece in spelled]
    else:
        model["vocab"] |= {piece: first + place for place, piece in enumerate(spelled)}
        for left, right in pairs_towards(SYNC):
            for token in (left, right, left + right):
                model["vocab"].setdefault(token, len(model["vocab"]))
            model["merges"].insert(0, [left, right])
    # A token after the tags, whose id must not move when they are gone.
    data["added_tokens"].append(
        {"id": len(model["vocab"]), "content": "<after>", "single_word": False, "lstrip": False}
        | {"rstrip": False, "normalized": False, "special": False}
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(data)))
    tokenizer.chat_template = CHAT
    return Vocabulary(tokenizer, {p: first + place for place, p in enumerate(PIECES)})


def pairs_towards(word: str) -> list[tuple[str, str]]:
    return [(word[:end], word[end]) for end in range(len(word) - 1, 0, -1)]


PLAIN = {name: Vocabulary(build()) for name, build in FAMILIES.items()}
"""Without tags: the model was never taught them."""

TAUGHT = {name: taught(name) for name in FAMILIES}
"""With tags as ``add_pieces`` adds them."""

VOCABULARIES = {
    **TAUGHT,
    **{f"{name}, not special": taught(name, special=False) for name in FAMILIES},
    **{f"{name}, trained in": trained_in(name) for name in FAMILIES},
}
