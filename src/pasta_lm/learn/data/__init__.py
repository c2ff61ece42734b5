"""Training data; here the messages of a row, in the keys of published data sets.

All text of a row is read, or the row is refused by the key that is not; only ``METADATA`` may hold
text that nothing reads. Knows nothing of tags.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest

from pasta_lm.errors import InputError
from pasta_lm.journal import Row

Turn = Mapping[str, str]
METADATA = {
    *("id", "key", "uuid", "source", "category", "url", "licence", "license", "dataset", "domain"),
    *("provenance", "shape", "parts", "kind", "difficulty", "language", "lang", "model"),
    *("judge", "generator", "split", "tags", "metadata"),
}
"""Keys of a row that may hold text about it; so may those that end in ``_id``."""
PARAGRAPHS = {"instruction": ("input", "context")}  # Alpaca's and Dolly's, behind the first key
PROMPTS = ("messages", "conversations", "prompt", "instruction", "question")
SYSTEM = ("system", "system_prompt")
ANSWERS = ("response", "annotated", "output", "answer", "completion", "chosen", "rejected")
THOUGHT = "reasoning_content"
ROLES = {"system": "system", "developer": "system", "user": "user", "human": "user"}
ROLES |= dict.fromkeys(("assistant", "gpt", "chatgpt", "bing", "bard"), "assistant")


def prompt_key(row: Row) -> str | None:
    return next((key for key in PROMPTS if row.get(key)), None)


def messages_of(row: Row) -> list[Turn]:
    """Return the messages of a row, its system message first; none if it asks nothing."""
    key, turns = prompt_key(row), list[Turn]()
    if key in PROMPTS[2:] and isinstance(row[key], str):
        texts = (text_of(row, name) for name in (key, *PARAGRAPHS.get(key, ())))
        turns = [{"role": "user", "content": "\n\n".join(filter(str.strip, texts))}]
    elif key is not None:
        turns = [_turn(key, *pair) for pair in enumerate(_listed(key, row[key]), start=1)]
    systems = [name for name in SYSTEM if text_of(row, name)]
    if len(systems) + sum(turn["role"] == "system" for turn in turns[:1]) > 1:
        raise InputError(f"{systems[-1]!r} is a second system message")
    return [*({"role": "system", "content": row[name]} for name in systems), *turns]


def unread(row: Row, turns: Iterable[Turn], answers: Mapping[str, str | None]) -> str | None:
    """Return the first key with text that is in no turn and in no answer; None: all is read.

    ``answers`` are what else was read, by key.
    """
    key = prompt_key(row) or ""
    read = {key, *PARAGRAPHS.get(key, ()), *SYSTEM, *answers, *METADATA}
    texts = (text for turn in turns for text in turn.values())
    known = {" ".join(text.split()) for text in (*texts, *answers.values(), "") if text is not None}
    others = (name for name in row if name not in read and not name.endswith("_id"))
    return next((name for name in others if {*_texts(row[name])} - known), None)


def check_read(row: Row, turns: Iterable[Turn], answers: Mapping[str, str | None]) -> None:
    """Raise an InputError that names a key with text that is in no turn and in no answer."""
    if (key := unread(row, turns, answers)) is not None:
        hint = "leave it out, put it into 'messages', or keep it under 'metadata'"
        raise InputError(f"{key!r} holds text that is not read", hint=hint)


def question_of(row: Row, problem: str) -> str:
    """Return the text of a row that asks one question; answers beside it are not looked at."""
    try:
        turns = messages_of(row)
        check_read(row, turns, dict.fromkeys((*ANSWERS, THOUGHT)))
        if [(turn["role"], bool(turn["content"].strip())) for turn in turns] != [("user", True)]:
            raise InputError("it must be one question, alone")
    except InputError as exc:
        hint = exc.hint or 'a row is {"id": ..., "instruction": ...}'
        raise InputError(f"{problem}: {exc.message}", hint=hint) from exc
    return turns[0]["content"]


def messages_with(turns: Iterable[Turn], prompt: str) -> list[Turn]:
    return [*turns, {"role": "user", "content": prompt}]


def joined(turns: Iterable[Turn]) -> str:
    """Return the texts of some turns as paragraphs, for a reader that is shown one text."""
    texts = (turn.get("content", turn.get("response", "")) for turn in turns)
    return "\n\n".join(filter(str.strip, texts))


def text_of(row: Row, key: str) -> str:
    """Return the text of a key, empty if there is none; an InputError if it is something else."""
    text = row.get(key)
    if text is not None and not isinstance(text, str):
        raise InputError(f"{key!r} is no text")
    return text or ""


def _listed(key: str, value: object) -> list[Row]:
    if isinstance(value, Mapping):  # a sequence of records, stored column by column
        columns = [column if isinstance(column, list) else [] for column in value.values()]
        value = [dict(zip(value, cells, strict=True)) for cells in zip_longest(*columns)]
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise InputError(f"{key!r} must be {'a text or ' * (key in PROMPTS[2:])}a list of objects")
    return value


def _turn(key: str, number: int, message: Row) -> Turn:
    where = f"message {number} of {key!r}"
    name = message.get("role", message.get("from", "user" if key == "messages" else None))
    if (role := ROLES.get(str(name))) is None:
        raise InputError(f"{where} has the role {name!r}", hint=f"one of {', '.join(ROLES)}")
    is_written = role == "assistant" and isinstance(message.get("response"), str)
    turn = {"role": role} | ({"response": message["response"]} if is_written else {})
    content = message.get("content", message.get("value"))
    if content is not None or not is_written:
        parts = content if isinstance(content, list) else [content]
        turn["content"] = "\n".join(_part(part, where) for part in parts)
    if role == "assistant" and text_of(message, THOUGHT):
        turn[THOUGHT] = message[THOUGHT]
    read = ("role", "from", "name", "content", "value")
    if (other := unread(message, [turn], dict.fromkeys(read))) is not None:
        raise InputError(f"{where}: {other!r} holds text that is not read", hint="leave it out")
    return turn


def _part(part: object, where: str) -> str:
    if isinstance(part, Mapping) and part.get("type") == "text":
        part = part.get("text")
    if not isinstance(part, str):
        kind = part.get("type") if isinstance(part, Mapping) else part
        raise InputError(f"{where} must have texts under 'content', not {kind!r}")
    return part


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield " ".join(value.split())
    elif isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(part)
