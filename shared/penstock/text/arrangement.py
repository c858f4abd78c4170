"""A conversation as a chat template shows it whole: turns, calls and thoughts, each by what the
template was found to show. It is asked once for each, when a conversation first needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from penstock.text.shown_calls import (
    Beside,
    ShownCalls,
    WriteCalls,
    merged,
    shown_calls,
    shows_tools,
    thoughts_beside,
    with_calls,
)
from penstock.text.template_shape import (
    TurnShape,
    arranged,
    ends_before_calls,
    space_before_calls,
    takes_thoughts,
    thought_part,
    turn_shape_of,
    without_space,
)

THOUGHTS = ("reasoning_content", "reasoning", "thinking")
"""Names of a message's thoughts: ours and most templates', and those that gpt-oss, LFM2.5 and Solar
have."""
Message = dict[str, Any]


class Traits:
    """What a conversation has that its template may have to be asked about. Each message is looked
    at once, in order."""

    __slots__ = ("_role", "characters", "of_tools", "simple", "spaced", "thinks")

    def __init__(self) -> None:
        self.characters = 0
        """Characters of all contents' texts."""
        self.of_tools = False
        """Whether there are calls, or results of some."""
        self.simple = True
        """Whether every template shows its turns, or none of them need to be arranged: no system
        message, no two turns of one role in a row but for results, and no two calls in one."""
        self.spaced = False
        """Whether a text before calls ends in whitespace."""
        self.thinks = False
        """Whether there are thoughts."""
        self._role = ""

    def add(self, message: Message) -> None:
        """Takes the next message."""
        role, content = message["role"], message["content"]
        if isinstance(content, str):
            self.characters += len(content)
        else:
            self.characters += sum(len(part.get("text", "")) for part in content)
        if role == "tool":
            self.of_tools = True
        elif role in (self._role, "system"):
            self.simple = False
        self._role = role
        if message.get(THOUGHTS[0]):
            self.thinks = True
        if calls := message.get("tool_calls"):
            self.of_tools = True
            self.simple = self.simple and len(calls) == 1
            self.spaced = self.spaced or ends_before_calls(message)


def traits_of(messages: Iterable[Message]) -> Traits:
    """Returns the traits of a whole conversation."""
    found = Traits()
    for message in messages:
        found.add(message)
    return found


class Arrangement:
    """render: fills the template with messages, and perhaps tools; may raise InvalidRequest.
    texts: whether a message's content may be a text.  names: of thoughts that the template's text
    has."""

    def __init__(
        self,
        render: Callable[..., str],
        texts: Callable[[], bool],
        names: Iterable[str],
    ) -> None:
        self._render = render
        self._texts = texts
        known = list(names)
        self._thoughts = known[:1] if THOUGHTS[0] in known else known
        self._turns: TurnShape | None = None
        self._call_space: str | None = None
        self._thought_parts: bool | None = None
        self._shown: ShownCalls | None = None
        self._placing: Beside | None = None
        self._shows_tools: bool | None = None

    def of(
        self, messages: list[Message], write: WriteCalls | None, traits: Traits
    ) -> list[Message]:
        """The messages in turns that the template shows, with thoughts by the name that it knows
        them by. write: calls, where it shows none; None: they are left to it.  traits: of the
        messages."""
        turns = messages
        if traits.of_tools and write is not None:
            turns = self._called(turns, write)
            traits = traits if turns is messages else traits_of(turns)
        if not traits.simple:
            turns = self._in_turns(turns)
            traits = traits_of(turns)
        if traits.spaced:
            turns = self._spaced(turns)
        if not traits.thinks:
            return turns
        names = self._thoughts
        if THOUGHTS[0] not in names:
            if self._thought_parts is None:
                self._thought_parts = takes_thoughts(self._render)
            if self._thought_parts:
                return [_with_thought_part(each) for each in turns]
            turns = [_with_thoughts_as(each, names) for each in turns]
        if not any(_says_all(each, names) for each in turns):
            return turns
        if self._placing is None:
            self._placing = thoughts_beside(self._filled, names)
        way = self._placing
        return [merged(each, names, way) if _says_all(each, names) else each for each in turns]

    def is_known(self, traits: Traits) -> bool:
        """Whether `of` asks nothing for a conversation with these."""
        if traits.of_tools and self._shown is None:
            return False
        turns = self._turns is not None or traits.simple
        space = self._call_space is not None or not traits.spaced
        parts = THOUGHTS[0] in self._thoughts or self._thought_parts is not None
        known = parts and (self._placing is not None or not (traits.of_tools and self._thoughts))
        return turns and space and (known or not traits.thinks)

    @property
    def knows_tools(self) -> bool:
        """Whether `shows_tools` asks nothing."""
        return self._shows_tools is not None

    def shows_tools(self) -> bool:
        """Whether the template shows the model the tools that it may call."""
        if self._shows_tools is None:
            self._shows_tools = shows_tools(self._filled)
        return self._shows_tools

    def _called(self, messages: list[Message], write: WriteCalls) -> list[Message]:
        if self._shown is None:
            self._shown = shown_calls(self._filled, write)
        return messages if self._shown.all else with_calls(messages, self._shown, write)

    def _in_turns(self, messages: list[Message]) -> list[Message]:
        if self._turns is None:
            self._turns = turn_shape_of(self._filled)
        return arranged(messages, self._turns)

    def _spaced(self, turns: list[Message]) -> list[Message]:
        """Texts before calls without the space that the template puts there."""
        if self._call_space is None:
            self._call_space = space_before_calls(self._filled)
        space = self._call_space
        return [without_space(each, space) for each in turns] if space else turns

    def _filled(self, turns: list[Message], **more: Any) -> str:
        """What the template makes of messages whose content is a text."""
        if not self._texts():
            turns = [
                {**each, "content": [{"type": "text", "text": each["content"]}]} for each in turns
            ]
        return self._render(turns, **more)


def _thoughts_of(message: Message) -> Any:
    return message.get(THOUGHTS[0])


def _with_thought_part(message: Message) -> Message:
    """Thoughts in the content."""
    thoughts, content = _thoughts_of(message), message["content"]
    if not thoughts:
        return message
    if isinstance(content, str):
        content = [{"type": "text", "text": content}] if content else []
    return {**message, "content": [thought_part(thoughts), *content]}


def _with_thoughts_as(message: Message, names: list[str]) -> Message:
    """Thoughts under those names in place of ours."""
    thoughts = _thoughts_of(message)
    if not thoughts or not names:
        return message
    others = {name: value for name, value in message.items() if name != THOUGHTS[0]}
    return {**dict.fromkeys(names, thoughts), **others}


def _says_all(message: Message, names: list[str]) -> bool:
    """Whether it has thoughts, a text and calls."""
    thinks = any(message.get(name) for name in names)
    return thinks and bool(message["content"] and message.get("tool_calls"))
