"""Answers in Ollama's format: one JSON object, or one per line as the text arrives."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from penstock.text.call_arguments import call_arguments
from penstock_dialects.ollama.request import encoded
from penstock_gateway.chat.answer_parts import AnswerParts
from penstock_gateway.chat.parsing_spec import ParsingSpec, parsing_of
from penstock_gateway.generate.chunked_reply import (
    Pace,
    Splices,
    are_many,
    chat_logprob_list,
)
from penstock_gateway.generate.logprobs import ChatLogprob, chat_logprobs
from penstock_gateway.generate.reply import (
    PromptLogprobsSource,
    ReplyHead,
    TimelineField,
    UsageField,
    UsageInfo,
    WrittenAtOnce,
    encoder,
    one_line,
)
from penstock_gateway.generate.reply_spec import ReplySpec
from penstock_gateway.generate.timeline import RequestTimeline

if TYPE_CHECKING:
    from penstock.client import SequenceDelta
    from penstock.text.tokenizer import Tokenizer
    from penstock_gateway.chat.parsed_choice import Parsing
    from penstock_gateway.generate.reply import ChoiceOutput
    from penstock_gateway.http.errors import HTTPError
    from penstock_gateway.models.backend import EngineInfo


# The parts of an answer as Ollama shows them: pieces of text and reasoning, and whole calls.


class ReplyFunction(msgspec.Struct, frozen=True):
    """arguments: an object; where the model wrote none, what it wrote is under INVALID_JSON."""

    name: str
    arguments: dict[str, Any]


class ReplyCall(msgspec.Struct, frozen=True):
    id: str
    function: ReplyFunction


@dataclass
class AnswerPiece:
    """What one line shows, or a whole answer."""

    content: str = ""
    thinking: str = ""
    calls: list[ReplyCall] = field(default_factory=list)

    def take(self, other: AnswerPiece) -> None:
        """Adds another piece."""
        self.content += other.content
        self.thinking += other.thinking
        self.calls += other.calls


Send = Callable[[AnswerPiece], None]


class SentText:
    """A text that is sent as it comes."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def begin(self) -> None:
        """Does nothing: this API doesn't tell of an item's beginning."""

    def add(self, text: str, logprobs: list[ChatLogprob]) -> None:
        if text:
            self._send(AnswerPiece(content=text))

    def finish(self, status: str) -> None:
        """Does nothing: this API doesn't tell of an item's end."""


class SentThoughts(SentText):
    """A text of thoughts, which is sent as it comes."""

    def add(self, text: str, logprobs: list[ChatLogprob]) -> None:
        self._send(AnswerPiece(thinking=text))


class SentCall(SentText):
    """A call, which is sent when it is whole."""

    def __init__(self, send: Send, call_id: str, name: str) -> None:
        super().__init__(send)
        self._call_id = call_id
        self._name = name
        self._texts: list[str] = []

    def add(self, text: str, logprobs: list[ChatLogprob]) -> None:
        self._texts.append(text)

    def finish(self, status: str) -> None:
        arguments = call_arguments("".join(self._texts))
        self._send(
            AnswerPiece(calls=[ReplyCall(self._call_id, ReplyFunction(self._name, arguments))])
        )


class PieceKinds:
    """Parts of the kinds that an answer has."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def text(self, index: int) -> SentText:
        return SentText(self._send)

    def thoughts(self, index: int) -> SentThoughts:
        return SentThoughts(self._send)

    def call(self, index: int, call_id: str, name: str) -> SentCall:
        return SentCall(self._send, call_id, name)


class ReplyMessage(msgspec.Struct, kw_only=True):
    role: str = "assistant"
    content: str = ""
    thinking: str | UnsetType = UNSET
    tool_calls: list[ReplyCall] | UnsetType = UNSET


class ReplyLine(msgspec.Struct, kw_only=True):
    """Times are in nanoseconds, and absent until the answer is done, as the counts are.
    created_at: RFC 3339."""

    model: str
    created_at: str = ""
    done: bool = False
    done_reason: str | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET
    penstock_timeline: TimelineField = UNSET
    logprobs: list[ChatLogprob] | UnsetType = UNSET
    """The tokens up to the line's end that no line before it has, or all of an answer in one piece;
    there where they were asked for."""


class ChatLine(ReplyLine, kw_only=True):
    message: ReplyMessage


class GenerateLine(ReplyLine, kw_only=True):
    response: str = ""
    thinking: str | UnsetType = UNSET


Show = Callable[[str, AnswerPiece], ReplyLine]
"""Makes a line of the model's name and what is to be shown."""


def chat_line(model: str, piece: AnswerPiece) -> ChatLine:
    message = ReplyMessage(
        content=piece.content, thinking=piece.thinking or UNSET, tool_calls=piece.calls or UNSET
    )
    return ChatLine(model=model, message=message)


def generate_line(model: str, piece: AnswerPiece) -> GenerateLine:
    return GenerateLine(model=model, response=piece.content, thinking=piece.thinking or UNSET)


class OllamaFormat(WrittenAtOnce):
    """A ReplyFormat of one answer. tokenizer: of log-probabilities; None: none are shown."""

    shows_aborts = True

    def __init__(
        self,
        head: ReplyHead,
        parsing: Parsing | None,
        show: Show,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._logprobs: list[ChatLogprob] = []
        """What no line has shown yet."""
        self._model = head.model
        self._show = show
        self._parsing = parsing
        self._begun = time.perf_counter_ns()
        self._first: int | None = None
        """Time at which the first token came; None before."""
        self._reason = "stop"
        self._timeline: TimelineField = UNSET
        self._out = bytearray()
        self._parts: AnswerParts[None] = AnswerParts(PieceKinds(self._line), parsing)

    def begin(self, source: PromptLogprobsSource) -> None:
        """Does nothing: this API shows nothing of the prompt."""

    def opening(self, out: bytearray, choice: int, usage: UsageField, begun: UsageInfo) -> None:
        """A stream begins with its first text."""

    def is_large(self, deltas: list[SequenceDelta]) -> bool:
        reads = self._parsing is not None or self._tokenizer is not None
        return reads and are_many(deltas)

    def delta(self, out: bytearray, choice: int, delta: SequenceDelta, usage: UsageField) -> None:
        self._first = self._first or time.perf_counter_ns()
        self._out = out
        if self._tokenizer is not None:
            found = chat_logprobs(self._tokenizer, delta.token_ids, delta.logprobs)
            self._logprobs += found.content
        self._parts.push(delta.text, delta.token_ids, [])
        if delta.finish_reason is not None:
            self._parts.finish("")
            self._reason = str(delta.finish_reason)

    def usage(self, out: bytearray, usage: UsageInfo) -> None:
        """Adds nothing: usage comes with the last line."""

    def timeline(self, out: bytearray, timeline: RequestTimeline) -> None:
        self._timeline = timeline

    def end(self, out: bytearray, usage: UsageInfo) -> None:
        self._append(out, self._done(AnswerPiece(), usage))

    def failed(self, error: HTTPError) -> bytes:
        return encoded(error) + b"\n"

    async def whole(
        self, choices: list[ChoiceOutput], usage: UsageInfo, timeline: TimelineField
    ) -> list[bytes]:
        [choice] = choices
        whole = AnswerPiece()
        parts: AnswerParts[None] = AnswerParts(PieceKinds(whole.take), self._parsing)
        await parts.push_whole("".join(choice.texts), choice.token_ids, Pace())
        parts.finish("")
        self._first = choice.begun
        self._reason, self._timeline = str(choice.finish_reason), timeline
        line, splices = self._done(whole, usage), Splices()
        if self._tokenizer is not None:
            shown = await chat_logprob_list(self._tokenizer, choice, Pace())
            line.logprobs = splices.put(shown.pieces())
        return splices.spliced(encoder.encode(line))

    def _line(self, piece: AnswerPiece) -> None:
        self._append(self._out, self._show(self._model, piece))

    def _append(self, out: bytearray, line: ReplyLine) -> None:
        line.created_at = _now()
        if self._logprobs:
            line.logprobs, self._logprobs = self._logprobs, []
        out += one_line(encoder.encode(line)) + b"\n"

    def _done(self, piece: AnswerPiece, usage: UsageInfo) -> ReplyLine:
        now = time.perf_counter_ns()
        first = self._first or now
        line = self._show(self._model, piece)
        line.created_at = _now()
        line.done = True
        line.done_reason = self._reason
        line.total_duration = now - self._begun
        line.load_duration = 0
        line.prompt_eval_count = usage.prompt_tokens
        line.prompt_eval_duration = first - self._begun
        line.eval_count = usage.completion_tokens
        line.eval_duration = now - first
        line.penstock_timeline = self._timeline
        return line


class OllamaSpec(ReplySpec, frozen=True):
    """How one answer is written."""

    chats: bool
    """Whether the answer is a message; else it is a text."""
    parsing: ParsingSpec | None
    """How it is read; None: all of it is text."""
    logprobs: bool

    def format(self, head: ReplyHead, engine: EngineInfo) -> OllamaFormat:
        show: Show = chat_line if self.chats else generate_line
        tokenizer = engine.text.tokenizer if self.logprobs else None
        return OllamaFormat(head, parsing_of(self.parsing, engine), show, tokenizer)


def loaded(model: str, show: Show, what: str = "load") -> bytes:
    """Returns the whole answer to a request that only loads or unloads the model. what: `load`, or
    `unload`."""
    line = show(model, AnswerPiece())
    line.created_at, line.done, line.done_reason = _now(), True, what
    return encoder.encode(line)


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")
