"""Calls, their results and thoughts that a chat template would drop: they are moved to where it
shows them.

Some templates were written without calls: an assistant's turn that is nothing but a call is then an
empty turn, and the tool's result follows no call. Others drop thoughts of a turn with both a text
and a call. As with turns (see `penstock.text.template_shape`), this is found by rendering short
conversations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from penstock.errors import InvalidRequest
from penstock.text.as_written import SentArguments, spaced

Message = dict[str, Any]
Render = Callable[[list[Message]], str]
"""Fills the template with messages whose content is a text; may raise InvalidRequest."""
WriteCalls = Callable[[Sequence[dict[str, Any]]], str]
"""The text of calls, as the model writes them."""
_ASKED, _SAID, _CALLED, _RESULT, _THOUGHT = "QUINCE", "MEDLAR", "SORREL", "TANSY", "LOVAGE"
_TOOL = "borage"


@dataclass(frozen=True, slots=True)
class ShownCalls:
    """alone, beside: whether calls are shown in a turn without a text, and in one with a text.
    results: whether tools' results are."""

    alone: bool = True
    beside: bool = True
    results: bool = True

    @property
    def all(self) -> bool:
        return self.alone and self.beside and self.results


def shown_calls(render: Render, write: WriteCalls) -> ShownCalls:
    """Asks a template. All is as if shown where it takes no conversation at all."""
    if not _shows(render, [_user(), _assistant(_SAID)], (_ASKED, _SAID)):
        return ShownCalls()
    alone = _shows(render, [_user(), _assistant("", calls=True)], (_TOOL, _CALLED))
    with_text = _shows(render, [_user(), _assistant(_SAID, calls=True)], (_SAID, _TOOL, _CALLED))
    shown = ShownCalls(alone, with_text)
    probe = with_calls([_user(), _assistant("", calls=True), _result()], shown, write)
    return ShownCalls(alone, with_text, _shows(render, probe, (_ASKED, _CALLED, _RESULT)))


def with_calls(messages: list[Message], shown: ShownCalls, write: WriteCalls) -> list[Message]:
    """The messages, with calls in the content where the template shows none, and results as the
    user's words where it shows none."""
    return [_rewritten(message, shown, write) for message in messages]


def _rewritten(message: Message, shown: ShownCalls, write: WriteCalls) -> Message:
    content = message["content"]
    if message["role"] == "tool" and not shown.results:
        name = message.get("name")
        text = f"<tool_response>\n{_text(content)}\n</tool_response>"
        kept = {"role": "user", "content": text}
        return kept if name is None else {**kept, "name": name}
    calls = message.get("tool_calls")
    if not calls or (shown.beside if content else shown.alone):
        return message
    kept = {name: value for name, value in message.items() if name != "tool_calls"}
    said = _text(content)
    space = "\n" if said and not said[-1:].isspace() else ""
    return {**kept, "content": f"{said}{space}{write([_spaced(call) for call in calls])}"}


def _spaced(call: dict[str, Any]) -> dict[str, Any]:
    """The call with the arguments' text as a template would show it."""
    arguments = call["function"].get("arguments")
    if not isinstance(arguments, SentArguments):
        return call
    sent = SentArguments(arguments, spaced(arguments.text))
    return {**call, "function": {**call["function"], "arguments": sent}}


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content)


Beside = Literal["kept", "merged", "dropped"]
"""How thoughts are passed in a turn with a text and calls.  merged: the text is appended to them,
as gpt-oss's template needs.  dropped: the template shows none, by its own rule."""


def thoughts_beside(render: Render, names: Sequence[str]) -> Beside:
    """Asks a template. names: of a message's thoughts, as it knows them."""
    for way in ("kept", "merged"):
        turn = merged(_thinking(_SAID, names), names, way)
        if _shows(render, [_user(), turn, _result()], (_THOUGHT, _SAID, _CALLED)):
            return way
    return "dropped"


def merged(message: Message, names: Sequence[str], way: Beside) -> Message:
    """A turn that has thoughts, a text and calls, in a way that the template shows."""
    if way == "kept":
        return message
    if way == "dropped":
        return {name: value for name, value in message.items() if name not in names}
    thoughts = f"{message[names[0]]}\n\n{_text(message['content'])}"
    return {**message, **dict.fromkeys(names, thoughts), "content": ""}


def shows_tools(render: Callable[..., str]) -> bool:
    """Whether the template shows the model the tools that it may call. render: also takes
    `tools`."""
    schema = {"type": "object", "properties": {_CALLED: {"type": "string", "description": "A"}}}
    function = {"name": _TOOL, "description": _SAID, "parameters": schema}
    try:
        return _TOOL in render([_user()], tools=[{"type": "function", "function": function}])
    except InvalidRequest:
        return True


def _user() -> Message:
    return {"role": "user", "content": _ASKED}


def _assistant(said: str, *, calls: bool = False) -> Message:
    if not calls:
        return {"role": "assistant", "content": said}
    arguments = SentArguments({"at": _CALLED}, f'{{"at": "{_CALLED}"}}')
    function = {"name": _TOOL, "arguments": arguments}
    call = {"id": "probe0000", "type": "function", "function": function}
    return {"role": "assistant", "content": said, "tool_calls": [call]}


def _thinking(said: str, names: Sequence[str]) -> Message:
    return {**_assistant(said, calls=True), **dict.fromkeys(names, _THOUGHT)}


def _result() -> Message:
    return {"role": "tool", "tool_call_id": "probe0000", "name": _TOOL, "content": _RESULT}


def _shows(render: Render, messages: list[Message], words: Sequence[str]) -> bool:
    try:
        text = render(messages)
    except InvalidRequest:
        return False
    return all(word in text for word in words)
