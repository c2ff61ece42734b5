"""The tokenizer of the tasks: byte-level BPE, digits alone, names spelled the same everywhere.

A word in small letters takes the space before it along. A capitalised word does not: a name at the
start of a line and within a sentence are the same tokens, which is what copying is made of.
"""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from pasta_lm.language.tags import PIECES

END, USER, ASSISTANT = "<|end|>", "<|user|>", "<|assistant|>"
PATTERN = r"\p{Lu}\p{Ll}*| ?\p{Ll}+|\p{L}+|\d| ?[^\s\p{L}\d]+(?: (?=[\d\p{Lu}]))?|\s"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ ('" + USER + "' if message['role'] == 'user' else '" + ASSISTANT + "')"
    " + message['content'] + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '" + ASSISTANT + "' }}{% endif %}"
)


def train_tokenizer(texts: Iterable[str], num_pieces: int) -> PreTrainedTokenizerFast:
    """Train the tokenizer on texts; all tokens but the tag pieces are counted as its pieces."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=num_pieces,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[END, USER, ASSISTANT],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)
    fast.chat_template = CHAT_TEMPLATE
    fast.add_tokens(
        [AddedToken(p, special=True, normalized=False, lstrip=False, rstrip=False) for p in PIECES],
        special_tokens=True,
    )
    return fast
