"""Which content and which sequences of turns a chat template shows, and a conversation in turns
that it does show.

No template says so. It is shown short conversations, and what it makes of them tells. One that
loops over a message's parts shows nothing of a text, and one that prints a text prints a list's
brackets. Agents send several system messages in front, system messages in the middle, user messages
one after another, and turns of several calls. Some templates refuse these, and some leave a part
out without a word.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from penstock.errors import InvalidRequest
from penstock.text.as_written import SentArguments

Message = dict[str, Any]
_WORDS = ("QUINCE", "MEDLAR", "SORREL", "TANSY", "LOVAGE", "BORAGE")


@dataclass(frozen=True, slots=True)
class TurnShape:
    """What a template shows whole and in order. system: a system message in front.  systems:
    several of them.  later_system: one after other turns.  users, assistants: several of that role
    one after another.  calls: several in one turn."""

    system: bool = True
    systems: bool = True
    later_system: bool = True
    users: bool = True
    assistants: bool = True
    calls: bool = True


_PROBES = {
    "system": ("system", "user"),
    "systems": ("system", "system", "user"),
    "later_system": ("system", "user", "system", "assistant", "system", "user"),
    "users": ("user", "user", "assistant", "user"),
    "assistants": ("user", "assistant", "assistant", "user"),
}


def turn_shape_of(render: Callable[[list[Message]], str]) -> TurnShape:
    """render: fills the template with messages whose content is a text; may raise
    InvalidRequest."""
    if not _shows_turns(render, ("user",)):
        return TurnShape()  # It takes nothing; what it says of a conversation is best left alone.
    found = {name: _shows_turns(render, roles) for name, roles in _PROBES.items()}
    # One that shows no call at all has nothing to gain from another arrangement.
    found["calls"] = _shows_calls(render, 2) or not _shows_calls(render, 1)
    return TurnShape(**found)


def _shows_turns(render: Callable[[list[Message]], str], roles: tuple[str, ...]) -> bool:
    words = _WORDS[: len(roles)]
    messages = [{"role": role, "content": word} for role, word in zip(roles, words, strict=True)]
    return _shows_in_order(render, messages, words)


def _shows_calls(render: Callable[[list[Message]], str], count: int) -> bool:
    asked, *words = _WORDS[: 1 + 2 * count]
    ids = [f"probe000{number}" for number in range(count)]
    calls = [_call(id, word) for id, word in zip(ids, words, strict=False)]
    head = [
        {"role": "tool", "tool_call_id": id, "name": "probe", "content": word}
        for id, word in zip(ids, words[count:], strict=True)
    ]
    messages: list[Message] = [
        {"role": "user", "content": asked},
        {"role": "assistant", "content": "", "tool_calls": calls},
        *head,
    ]
    return _shows_in_order(render, messages, (asked, *words))


def _call(id: str, word: str) -> dict[str, Any]:
    arguments = SentArguments({"at": word}, f'{{"at": "{word}"}}')
    return {"id": id, "type": "function", "function": {"name": "probe", "arguments": arguments}}


def space_before_calls(render: Callable[[list[Message]], str]) -> str:
    """Whitespace that the template puts between an answer's text and its calls, whatever the text
    ends in; empty where it puts none, or trims the text.  render: as in `turn_shape_of`."""
    space = _space_after(render, "")
    return space if space and _space_after(render, space) == 2 * space else ""


def _space_after(render: Callable[[list[Message]], str], ending: str) -> str:
    asked, said, word = _WORDS[:3]
    turn = {"role": "assistant", "content": said + ending, "tool_calls": [_call("probe0000", word)]}
    try:
        text = render([{"role": "user", "content": asked}, turn])
    except InvalidRequest:
        return ""
    _, _, after = text.partition(said)
    return after[: len(after) - len(after.lstrip())] if word in after else ""


def without_space(message: Message, space: str) -> Message:
    """A turn whose text doesn't end in what the template itself puts before its calls: the model
    wrote that, and would see it twice."""
    if not (ends_before_calls(message) and message["content"].endswith(space)):
        return message
    return {**message, "content": message["content"].removesuffix(space)}


def ends_before_calls(message: Message) -> bool:
    """Whether it has calls after a text that ends in whitespace."""
    content = message["content"]
    return (
        bool(message.get("tool_calls"))
        and isinstance(content, str)
        and content != content.rstrip() != ""
    )


def _shows_in_order(
    render: Callable[[list[Message]], str], messages: list[Message], words: Sequence[str]
) -> bool:
    try:
        text = render(messages)
    except InvalidRequest:
        return False
    places = [text.find(word) for word in words]
    return places[0] >= 0 and all(one < other for one, other in pairwise(places))


def arranged(messages: list[Message], shape: TurnShape) -> list[Message]:
    """The messages in turns that the template shows.

    System messages in front become one where it takes one. A later one becomes the user's words
    where it takes none there, in the neighbouring user's turn. Turns of one role in a row become
    one. Several calls in one turn become a turn each, with the call's result after it. What a
    conversation becomes is the beginning of what a longer one does, so prefixes are kept.
    """
    turns = _Turns(shape)
    for message in messages if shape.calls else _one_call_each(messages):
        turns.add(message)
    return turns.whole()


def _one_call_each(messages: list[Message]) -> Iterator[Message]:
    """Calls one after another, each with its result."""
    rest = deque(messages)
    while rest:
        message = rest.popleft()
        first, *others = message.get("tool_calls") or (None,)
        if not others:
            yield message
            continue
        by_call: dict[Any, list[Message]] = {call.get("id"): [] for call in (first, *others)}
        of_none: list[Message] = []
        while rest and rest[0]["role"] == "tool":
            result = rest.popleft()
            by_call.get(result.get("tool_call_id"), of_none).append(result)
        for call in (first, *others):
            own = message if call is first else {"role": "assistant", "content": ""}
            yield {**own, "tool_calls": [call]}
            yield from by_call.pop(call.get("id"), ())
        yield from of_none


class _Turns:
    """Messages in groups, each of which becomes one turn."""

    def __init__(self, shape: TurnShape) -> None:
        self._shape = shape
        self._groups: list[list[Message]] = []
        self._begun = False
        """Whether a turn came that is no system message."""
        self._open = False
        """Whether the last turn has words that were a system message's, and takes the user's."""

    def add(self, message: Message) -> None:
        role, joins = message["role"], False
        if role == "system" and self._begun and not self._shape.later_system:
            self._add({"role": "user", "content": message["content"]}, joins=True)
            self._open = True
            return
        if role == "user":
            joins = self._open or not self._shape.users
        elif role == "system":
            joins = not self._shape.systems and not self._begun
        elif role == "assistant":
            called = bool(self._groups) and bool(self._groups[-1][-1].get("tool_calls"))
            joins = not self._shape.assistants and not called
        self._begun |= role != "system"
        self._open = False
        self._add(message, joins=joins)

    def whole(self) -> list[Message]:
        """All turns. A template without system messages has the first one's words in the user's
        first turn."""
        groups = self._groups
        if groups and groups[0][0]["role"] == "system" and not self._shape.system:
            system = [{"role": "user", "content": each["content"]} for each in groups[0]]
            user = len(groups) > 1 and groups[1][0]["role"] == "user"
            groups = [system + groups[1], *groups[2:]] if user else [system, *groups[1:]]
        return [_joined(group) for group in groups]

    def _add(self, message: Message, *, joins: bool) -> None:
        if joins and self._groups and self._groups[-1][0]["role"] == message["role"]:
            self._groups[-1].append(message)
        else:
            self._groups.append([message])


def _joined(group: list[Message]) -> Message:
    if len(group) == 1:
        return group[0]
    whole: Message = {}
    for each in group:
        whole |= each
    whole["content"] = _joined_content([each["content"] for each in group])
    thoughts = [each["reasoning_content"] for each in group if "reasoning_content" in each]
    if thoughts:
        whole["reasoning_content"] = "\n".join(thoughts)
    return whole


def _joined_content(contents: list[Any]) -> Any:
    """Content of several messages as one: a text, or a list of parts if one of them is a list."""
    if all(isinstance(each, str) for each in contents):
        return "\n\n".join(text for text in contents if text)
    return [part for each in contents for part in _parts(each)]


def _parts(content: Any) -> list[Any]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return list(content)


_WORD = "QUINCE"


@dataclass(frozen=True, slots=True)
class ContentShape:
    """texts: content may be a text.  parts: it may be a list of {"type": "text", "text": …} and
    {"type": "image"}, or another kind of media."""

    texts: bool
    parts: bool


def one_message(content: Any) -> list[dict[str, Any]]:
    """A conversation of the user's."""
    return [{"role": "user", "content": content}]


def shape_of(render: Callable[[Any], str]) -> ContentShape:
    """render: fills the template with one message of that content; may raise InvalidRequest."""
    texts = _shows_content(render, _WORD)
    parts = _shows_content(render, [{"type": "text", "text": _WORD}])
    if not texts and not parts:  # Qwen3-ASR's shows nothing of a user's but sounds.
        return ContentShape(True, _shows_sounds(render))
    return ContentShape(texts or not parts, parts)


def takes_thoughts(render: Callable[[list[dict[str, Any]]], str]) -> bool:
    """Whether an assistant's content may have parts that are thoughts, as Ministral's may.
    render: fills the template with a conversation; may raise InvalidRequest."""
    said = {"role": "assistant", "content": [thought_part(_WORD), {"type": "text", "text": "A"}]}
    return _shows_content(lambda probe: render([*one_message("Q"), probe, *one_message("R")]), said)


def thought_part(thoughts: str) -> dict[str, Any]:
    """Thoughts as a part of a message's content."""
    return {"type": "thinking", "thinking": thoughts}


def _shows_content(render: Callable[[Any], str], content: Any) -> bool:
    try:
        text = render(content)
    except InvalidRequest:
        return False
    return _WORD in text and "'type'" not in text and '"type"' not in text


def _shows_sounds(render: Callable[[Any], str]) -> bool:
    try:
        text, without = render([media_part("audio")]), render([])
    except InvalidRequest:
        return False
    return text != without and "'type'" not in text and '"type"' not in text


@dataclass(frozen=True, slots=True)
class Marks:
    """What stands for media in a text, where a template takes no parts. No client can know it, and
    so write it."""

    secret: str

    def of(self, kind: str) -> str:
        """kind: of media."""
        return f"{kind.upper()}{self.secret}"


def stand_ins() -> Marks:
    """New ones."""
    return Marks(secrets.token_hex(16))


def media_part(kind: str) -> dict[str, Any]:
    """An item's part of a message, as templates look for it."""
    # Qwen2-Audio's looks for the key that names the sound, and others for the type.
    return {"type": kind, "audio_url": ""} if kind == "audio" else {"type": kind}


def shaped(
    messages: list[dict[str, Any]], shape: ContentShape, marks: Marks
) -> list[dict[str, Any]]:
    """The messages with contents that the template takes."""
    return [{**each, "content": _shaped(each["content"], shape, marks)} for each in messages]


def _shaped(content: Any, shape: ContentShape, marks: Marks) -> Any:
    if isinstance(content, str):
        return content if shape.texts else [{"type": "text", "text": content}]
    if shape.parts:
        return content
    return "\n".join(
        part["text"] if part["type"] == "text" else marks.of(part["type"]) for part in content
    )
