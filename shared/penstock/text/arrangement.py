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
    simple_turns,
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
        self._beside: Beside | None = None
        self._shows_tools: bool | None = None

    def of(self, messages: list[Message], write: WriteCalls | None) -> list[Message]:
        """The messages in turns that the template shows, with thoughts by the name that it knows
        them by. write: calls, where it shows none; None: they are left to it."""
        turns = self._spaced(self._in_turns(self._called(messages, write)))
        names = self._thoughts
        if not any(map(_thoughts_of, turns)):
            return turns
        if THOUGHTS[0] not in names:
            if self._thought_parts is None:
                self._thought_parts = takes_thoughts(self._render)
            if self._thought_parts:
                return [_with_thought_part(each) for each in turns]
            turns = [_with_thoughts_as(each, names) for each in turns]
        if not any(_says_all(each, names) for each in turns):
            return turns
        if self._beside is None:
            self._beside = thoughts_beside(self._filled, names)
        way = self._beside
        return [merged(each, names, way) if _says_all(each, names) else each for each in turns]

    def is_known(self, messages: list[Message]) -> bool:
        """Whether `of` asks nothing."""
        calls = any(map(_is_of_tools, messages))
        if calls and self._shown is None:
            return False
        turns = self._turns is not None or simple_turns(messages)
        space = self._call_space is not None or not any(map(ends_before_calls, messages))
        parts = THOUGHTS[0] in self._thoughts or self._thought_parts is not None
        known = parts and (self._beside is not None or not (calls and self._thoughts))
        return turns and space and (known or not any(map(_thoughts_of, messages)))

    @property
    def knows_tools(self) -> bool:
        """Whether `shows_tools` asks nothing."""
        return self._shows_tools is not None

    def shows_tools(self) -> bool:
        """Whether the model is told of the tools that it may call."""
        if self._shows_tools is None:
            self._shows_tools = shows_tools(self._filled)
        return self._shows_tools

    def _called(self, messages: list[Message], write: WriteCalls | None) -> list[Message]:
        if write is None or not any(map(_is_of_tools, messages)):
            return messages
        if self._shown is None:
            self._shown = shown_calls(self._filled, write)
        return messages if self._shown.all else with_calls(messages, self._shown, write)

    def _in_turns(self, messages: list[Message]) -> list[Message]:
        if simple_turns(messages):
            return messages
        if self._turns is None:
            self._turns = turn_shape_of(self._filled)
        return arranged(messages, self._turns)

    def _spaced(self, turns: list[Message]) -> list[Message]:
        """Texts before calls without the space that the template puts there."""
        if not any(map(ends_before_calls, turns)):
            return turns
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


def _is_of_tools(message: Message) -> bool:
    return bool(message.get("tool_calls")) or message["role"] == "tool"
