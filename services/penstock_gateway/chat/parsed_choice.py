"""Turns a parser's events into the parts of a message: content, reasoning, tool calls."""

from __future__ import annotations

import hashlib
import string
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from msgspec import UNSET, UnsetType

from penstock.client import SequenceDelta
from penstock.parsing import CallBegin, Content, Event, OutputParser, Reasoning
from penstock.text.detokenizer import make_detokenizer
from penstock.text.tokenizer import Tokenizer
from penstock_gateway.chat.custom_tools import InputText
from penstock_gateway.chat.token_marks import MarkedText, ReasoningTokens, TokenMarks
from penstock_gateway.generate.chunked_reply import Pace, parts_of

_LETTERS = string.ascii_letters + string.digits


class CalledFunction(msgspec.Struct):
    """arguments: JSON, as the model wrote it. Cut short where the answer was."""

    name: str
    arguments: str


class CalledCustom(msgspec.Struct):
    """input: cut short where the answer was."""

    name: str
    input: str


class ToolCall(msgspec.Struct):
    """function, custom: what was called; which of them, the type says."""

    id: str
    function: CalledFunction | UnsetType = UNSET
    type: str = "function"
    custom: CalledCustom | UnsetType = UNSET


class FunctionDelta(msgspec.Struct, omit_defaults=True):
    name: str | None = None
    arguments: str | None = None


class CustomDelta(msgspec.Struct, omit_defaults=True):
    name: str | None = None
    input: str | None = None


class ToolCallDelta(msgspec.Struct, omit_defaults=True):
    """id, type and name come once, with the first delta of a call; then pieces of arguments, or of
    a custom tool's input."""

    index: int
    id: str | None = None
    type: str | None = None
    function: FunctionDelta | None = None
    custom: CustomDelta | None = None

    def append(self, text: str) -> None:
        """Adds a piece."""
        if self.custom is not None:
            self.custom.input = (self.custom.input or "") + text
        elif self.function is not None:
            self.function.arguments = (self.function.arguments or "") + text

    @property
    def text(self) -> str:
        """The pieces in it."""
        if self.custom is not None:
            return self.custom.input or ""
        return "" if self.function is None else self.function.arguments or ""

    @property
    def name(self) -> str | None:
        """The name in it."""
        called = self.custom or self.function
        return None if called is None else called.name


class AssistantMessage(msgspec.Struct):
    """content: null where there is nothing but calls or reasoning.  reasoning: the same as
    reasoning_content: clients of vLLM and OpenRouter read the one, those of DeepSeek, SGLang and
    llama.cpp the other."""

    content: str | None
    role: str = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatDelta(msgspec.Struct, omit_defaults=True):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


@dataclass(frozen=True, slots=True)
class Marking:
    """How marks that are tokens are distinguished from text that looks alike. skips: the
    request's skip_special_tokens."""

    marks: TokenMarks
    tokenizer: Tokenizer
    skips: bool

    def text(self) -> MarkedText:
        """A new MarkedText for one choice."""
        return MarkedText(self.marks, make_detokenizer(self.tokenizer, self.skips))


@dataclass(frozen=True, slots=True)
class Parsing:
    """How the answers to a request are read."""

    make: Callable[[], OutputParser]
    """Makes a parser for one choice."""
    new_id: Callable[[], str]
    """Makes the id of a call."""
    most: int | None = None
    """Calls that are shown; None: all."""
    show_reasoning: bool = True
    closing: int | None = None
    """The token that ends the thinking; None: there is none, or it isn't known."""
    calls_finish: bool = True
    """Calls make the finish reason tool_calls; with a named function it stays stop, as OpenAI has
    it."""
    whole_calls: bool = False
    """Whether a stream shows a call only once all of it is there."""
    custom: frozenset[str] = frozenset()
    """Names of custom tools, whose calls hold a text."""
    marking: Marking | None = None
    """How the format's marks are distinguished from text that looks alike; None if all are
    text."""

    def call_id(self, call: CallBegin, draw: bytes = b"") -> str:
        """The call's own id, if it has one, or a new one. draw: the letters of that follow from it,
        instead of from chance."""
        if call.id:
            return call.id
        made = self.new_id()
        if not draw:
            return made
        letters = made.rpartition("_")[2]
        drawn = hashlib.shake_256(draw).digest(len(letters))
        return made.removesuffix(letters) + "".join(
            _LETTERS[each % len(_LETTERS)] for each in drawn
        )


class HeldCall:
    """Keeps what there is of a call until it has ended, which is when another begins or the answer
    ends."""

    def __init__(self) -> None:
        self._call: ToolCallDelta | None = None
        self._arguments: list[str] = []

    def ended(self, pieces: list[ToolCallDelta], *, last: bool) -> list[ToolCallDelta]:
        """Calls that have ended with these pieces."""
        found: list[ToolCallDelta] = []
        for piece in pieces:
            if piece.id is not None:
                found += self._whole()
                self._call = piece
            self._arguments.append(piece.text)
        return found + self._whole() if last else found

    def _whole(self) -> list[ToolCallDelta]:
        call, self._call = self._call, None
        if call is None:
            return []
        text = "".join(self._arguments)
        if call.custom is not None:
            call.custom = CustomDelta(call.name, text)
        else:
            call.function = FunctionDelta(call.name, text)
        self._arguments.clear()
        return [call]


class ParsedChoice:
    """Parses one choice's text as it comes."""

    def __init__(self, parsing: Parsing, draw: bytes = b"") -> None:
        """draw: ids of calls follow from it; empty: from chance."""
        self._parsing = parsing
        self._draw = draw
        self._parser = parsing.make()
        self._marked = None if parsing.marking is None else parsing.marking.text()
        self._calls = 0
        self._input: InputText | None = None
        """Reads the open call, if it is of a custom tool."""
        self._held = HeldCall() if parsing.whole_calls else None
        self._reasoning = ReasoningTokens(parsing.closing)

    @property
    def reasoning_tokens(self) -> int:
        """Tokens so far that were thoughts."""
        return self._reasoning.total

    def push(self, text: str, token_ids: list[int], *, last: bool) -> ChatDelta | None:
        """What a piece of text, and its tokens, add; None for nothing that can be shown yet."""
        delta = ChatDelta()
        self._read(delta, text, token_ids)
        if last:
            self._finish(delta)
        if self._held is not None:
            delta.tool_calls = self._held.ended(delta.tool_calls or [], last=last) or None
        return None if delta == _NOTHING else delta

    async def whole(self, text: str, token_ids: list[int], pace: Pace) -> ChatDelta:
        """All of an answer, of which nothing was pushed. Marks may take microseconds each: others
        have their turns meanwhile."""
        delta = ChatDelta()
        for part in parts_of(SequenceDelta(index=0, text=text, token_ids=token_ids)):
            self._read(delta, part.text, part.token_ids)
            await pace.rest()
        self._finish(delta)
        return delta

    def _read(self, delta: ChatDelta, text: str, token_ids: list[int]) -> None:
        self._reasoning.add(token_ids)
        if self._marked is not None:
            text = self._marked.push(text, token_ids)
        self._add(delta, self._parser.push(text))

    def _finish(self, delta: ChatDelta) -> None:
        self._add(delta, self._parser.finish())
        self._end_input(delta)

    def finish_reason(self, reason: str | None) -> str | None:
        """An answer that ended by itself in calls ended for them."""
        calls = self._calls and self._parsing.calls_finish
        return "tool_calls" if calls and reason == "stop" else reason

    def _add(self, delta: ChatDelta, events: list[Event]) -> None:
        marking = self._parsing.marking
        for event in events:
            self._add_one(delta, event if marking is None else marking.marks.plain(event))

    def _add_one(self, delta: ChatDelta, event: Event) -> None:
        if isinstance(event, Content):
            delta.content = (delta.content or "") + event.text
        elif isinstance(event, Reasoning):
            self._reasoning.thought = True
            if self._parsing.show_reasoning:
                delta.reasoning = (delta.reasoning or "") + event.text
                delta.reasoning_content = delta.reasoning
        elif isinstance(event, CallBegin):
            self._end_input(delta)
            self._calls += 1
            if self._shown():
                self._call(delta).append(self._begun(event))
        elif self._shown():
            added = event.text if self._input is None else self._input.feed(event.text)
            self._append(delta, added)

    def _shown(self) -> bool:
        most = self._parsing.most
        return most is None or self._calls <= most

    def _begun(self, event: CallBegin) -> ToolCallDelta:
        draw = self._draw and b"%b %d" % (self._draw, self._calls)
        id, index = self._parsing.call_id(event, draw), self._calls - 1
        if event.name not in self._parsing.custom:
            return ToolCallDelta(index, id, "function", FunctionDelta(event.name, ""))
        self._input = InputText()
        return ToolCallDelta(index, id, "custom", custom=CustomDelta(event.name, ""))

    def _end_input(self, delta: ChatDelta) -> None:
        """Adds what is left of a custom tool's input, now that its call has ended."""
        if self._input is not None:
            self._append(delta, self._input.rest())
            self._input = None

    def _append(self, delta: ChatDelta, text: str) -> None:
        if not text and self._input is not None:
            return
        calls, index = self._call(delta), self._calls - 1
        if not calls or calls[-1].index != index:
            of_custom = self._input is not None
            calls.append(
                ToolCallDelta(index, custom=CustomDelta())
                if of_custom
                else ToolCallDelta(index, function=FunctionDelta())
            )
        calls[-1].append(text)

    @staticmethod
    def _call(delta: ChatDelta) -> list[ToolCallDelta]:
        if delta.tool_calls is None:
            delta.tool_calls = []
        return delta.tool_calls


_NOTHING = ChatDelta()


async def whole_message(
    text: str, token_ids: list[int], parsed: ParsedChoice | None, pace: Pace
) -> AssistantMessage:
    """The message of a whole answer; parsed: fresh, None where all is content."""
    if parsed is None:
        return AssistantMessage(text)
    delta = await parsed.whole(text, token_ids, pace)
    content = delta.content
    if content is None and not delta.tool_calls and not delta.reasoning_content:
        content = ""
    message = AssistantMessage(content)
    if delta.reasoning_content:
        message.reasoning_content = message.reasoning = delta.reasoning_content
    if delta.tool_calls:
        message.tool_calls = [_whole_call(call) for call in delta.tool_calls]
    return message


def _whole_call(call: ToolCallDelta) -> ToolCall:
    if call.custom is not None:
        custom = CalledCustom(call.name or "", call.text)
        return ToolCall(call.id or "", type="custom", custom=custom)
    return ToolCall(call.id or "", CalledFunction(call.name or "", call.text))
