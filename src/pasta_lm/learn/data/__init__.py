"""Training data; here the messages of a row, in the keys of published data sets.

Of a row all text is read, or the row is refused by the key that is not; only ``METADATA`` may hold
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
CHATS = ("messages", "conversations")
ASKED = {"prompt": (), "instruction": ("input", "context"), "question": ()}
"""Keys of one question, each with those of its further paragraphs: Alpaca's and Dolly's."""
SYSTEM = ("system", "system_prompt")
ANSWERS = ("response", "annotated", "output", "answer", "completion", "chosen", "rejected")
THOUGHT = "reasoning_content"
ROLES = {name: name for name in ("system", "user", "assistant")} | {
    **{"developer": "system", "human": "user"},
    **dict.fromkeys(("gpt", "chatgpt", "bing", "bard"), "assistant"),
}
"""Roles of chat templates by the names that data sets give them."""


def is_asked(row: Row) -> bool:
    """Return whether a row has a prompt."""
    return _key(row) is not None


def messages_of(row: Row) -> list[Turn]:
    """Return the messages of a row, its system message first; none if it asks nothing.

    An InputError says what cannot be read as messages of text.
    """
    key = _key(row)
    if key is None:
        turns = list[Turn]()
    elif key in ASKED and isinstance(row[key], str):
        texts = filter(str.strip, (text_of(row, name) for name in (key, *ASKED[key])))
        turns = [{"role": "user", "content": "\n\n".join(texts)}]
    else:
        turns = [_turn(key, *pair) for pair in enumerate(_listed(key, row[key]), start=1)]
    systems = [name for name in SYSTEM if text_of(row, name)]
    if len(systems) + sum(turn["role"] == "system" for turn in turns[:1]) > 1:
        raise InputError(f"{systems[-1]!r} is a second system message")
    return [*({"role": "system", "content": row[name]} for name in systems), *turns]


def check_read(row: Row, turns: Iterable[Turn], answers: Mapping[str, str | None]) -> None:
    """Raise an InputError that names a key with text that is in no turn and in no answer.

    ``answers`` are what else was read, by key.
    """
    if (key := unread(row, turns, answers)) is not None:
        raise InputError(
            f"{key!r} holds text that is not read",
            hint="leave it out, put it into 'messages', or keep it under 'metadata'",
        )


def unread(row: Row, turns: Iterable[Turn], answers: Mapping[str, str | None]) -> str | None:
    """Return the first key with text that is in no turn and in no answer; None: all is read."""
    key = _key(row)
    read = {key, *ASKED.get(key or "", ()), *SYSTEM, *answers, *METADATA}
    texts = [text for turn in turns for text in turn.values()]
    known = {_words(text) for text in (*texts, *answers.values(), "")}
    others = (name for name in row if name not in read and not name.endswith("_id"))
    return next((each for each in others if {*map(_words, _texts(row[each]))} - known), None)


def question_of(row: Row) -> str:
    """Return the text of a row that asks one question; answers beside it are not looked at."""
    turns = messages_of(row)
    check_read(row, turns, dict.fromkeys((*ANSWERS, THOUGHT)))
    if [turn["role"] for turn in turns] != ["user"]:
        roles = ", ".join(turn["role"] for turn in turns) or "none"
        raise InputError(f"one question of the user is asked here, and its messages are: {roles}")
    return turns[0]["content"]


def messages_with(turns: Iterable[Turn], prompt: str) -> list[Turn]:
    """Return the messages of a prompt and of the turns before it."""
    return [*turns, {"role": "user", "content": prompt}]


def joined(turns: Iterable[Turn]) -> str:
    """Return the texts of some turns as paragraphs, for a reader that is shown one text."""
    texts = (turn.get("content", turn.get("response", "")) for turn in turns)
    return "\n\n".join(filter(str.strip, texts))


def content_text(content: object, place: str) -> str:
    """Return a message's content, whose text parts are joined as the server joins them."""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list) or not all(isinstance(part, Mapping) for part in parts):
        raise InputError(f"{place} must have texts under 'content'")
    for part in parts:
        if part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise InputError(f"{place} must have texts: a part has the type {part.get('type')!r}")
    return "".join(part["text"] for part in parts)


def _key(row: Row) -> str | None:
    return next((key for key in (*CHATS, *ASKED) if row.get(key)), None)


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
    if not isinstance(value, list) or not all(isinstance(message, Mapping) for message in value):
        kinds = "a text or a list" if key in ASKED else "a list"
        raise InputError(f"{key!r} must be {kinds} of objects")
    return value


def _turn(key: str, number: int, message: Row) -> Turn:
    place = f"message {number} of {key!r}"
    default = "user" if key == "messages" else None
    name = next((message[each] for each in ("role", "from") if each in message), default)
    role = ROLES.get(str(name))
    if role is None:
        raise InputError(f"{place} has the role {name!r}", hint=f"one of {', '.join(ROLES)}")
    is_written = role == "assistant" and isinstance(message.get("response"), str)
    text_key = "value" if "value" in message and "content" not in message else "content"
    turn = {"role": role}
    if is_written:
        turn["response"] = message["response"]
    if message.get(text_key) is not None or not is_written:
        turn["content"] = content_text(message.get(text_key), place)
    if role == "assistant" and text_of(message, THOUGHT):
        turn[THOUGHT] = message[THOUGHT]
    read = {"role", "from", "name", *METADATA, text_key}
    rest = {name: value for name, value in message.items() if name not in read}
    if (other := unread(rest, [turn], {})) is not None:
        raise InputError(f"{place}: {other!r} holds text that is not read", hint="leave it out")
    return turn


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(part)


def _words(text: str | None) -> str:
    return " ".join((text or "").split())
