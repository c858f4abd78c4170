"""The answer to one request: bytes and their arrival times in, a RequestRecord out. No I/O."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock_bench.load.event_parser import EventParser, EventTooLarge
from penstock_bench.load.record import ErrorKind, RequestRecord
from penstock_bench.load.response_parser import ProtocolError, ResponseParser

_MAX_ERROR_BODY = 4096


class Delta(msgspec.Struct):
    """The part of a chat chunk that can hold tokens."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None
    refusal: str | None = None


class StreamedChoice(msgspec.Struct):
    text: str | None = None
    delta: Delta | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None


class StreamedUsage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Chunk(msgspec.Struct):
    """One event of a completions or a chat stream; fields without use here are skipped."""

    choices: list[StreamedChoice] = []
    usage: StreamedUsage | None = None
    error: Any = None  # a server's error object, in whatever shape


_decoder = msgspec.json.Decoder(Chunk)


class Reception:
    """Fills one record.

    finished: the record is complete: [DONE] came, or the first error.
    drained: nothing more is to come, so that closing the connection cuts nothing off.
    """

    def __init__(self, record: RequestRecord, *, exact_length: bool = False) -> None:
        """exact_length: an answer of another length than was asked is an error."""
        self.record = record
        self.finished = False
        self.drained = False
        self._exact_length = exact_length
        self._response = ResponseParser()
        self._events = EventParser()
        self._error_body = b""

    def feed(self, data: bytes, now: float) -> None:
        """Takes bytes that arrived at `now`."""
        try:
            body = self._response.feed(data)
            if not self.finished:
                self._body(body, now)
        except (ProtocolError, EventTooLarge) as error:
            self._fail(ErrorKind.MALFORMED, str(error), now)
            return
        if self._response.complete:
            self.end(now)

    def end(self, now: float) -> None:
        """The body, or the connection, ended."""
        self.drained = True
        if self.finished:
            return
        self._response.end()
        status = self._response.status
        if status not in (0, 200):
            detail = self._error_body.decode("utf-8", "replace")
            self._fail(f"{ErrorKind.HTTP}_{status}", detail, now)
        else:
            what = "the stream ended without [DONE]" if status else "closed without a response"
            self._fail(ErrorKind.TRUNCATED, what, now)

    def _body(self, body: bytes, now: float) -> None:
        if self._response.status == 200:
            for event in self._events.feed(body):
                self._event(event, now)
                if self.finished:
                    return
        elif self._response.status:
            self._error_body = (self._error_body + body)[:_MAX_ERROR_BODY]

    def _event(self, event: bytes, now: float) -> None:
        if event == b"[DONE]":
            self._done(now)
            return
        try:
            chunk = _decoder.decode(event)
        except msgspec.DecodeError as error:
            self._fail(ErrorKind.MALFORMED, f"{error}: {event[:200]!r}", now)
            return
        if chunk.error is not None:
            self._fail(ErrorKind.STREAM_ERROR, str(chunk.error), now)
            return
        self._tokens(chunk, now)

    def _tokens(self, chunk: Chunk, now: float) -> None:
        record = self.record
        before = record.totals[-1] if record.totals else 0
        listed = 0
        brings_text = False
        for choice in chunk.choices:
            brings_text = brings_text or bool(choice.text) or _holds_text(choice.delta)
            listed += len(choice.token_ids) if choice.token_ids else 0
            if choice.finish_reason:
                record.finish_reason = choice.finish_reason
        usage = chunk.usage
        if usage is not None:
            record.prompt_tokens = usage.prompt_tokens
            record.completion_tokens = usage.completion_tokens
        if not chunk.choices:
            return
        # Counts per chunk are of use only if every chunk has one: a server may send its usage
        # with the last chunk alone.
        counted = len(record.totals) == len(record.arrivals)
        if counted and usage is not None:
            if usage.completion_tokens > before:
                self._arrived(now, usage.completion_tokens)
        elif counted and listed:
            self._arrived(now, before + listed)
        elif brings_text:
            record.arrivals.append(now)

    def _arrived(self, now: float, total: int) -> None:
        """A chunk whose token count is known."""
        self.record.arrivals.append(now)
        self.record.totals.append(total)

    def _done(self, now: float) -> None:
        record = self.record
        if not record.arrivals and record.output_tokens_asked:
            self._fail(ErrorKind.EMPTY, "the stream ended without a token", now)
        elif self._exact_length and not _has_asked_length(record):
            self._fail(
                ErrorKind.WRONG_LENGTH,
                f"{record.completion_tokens} tokens, asked for {record.output_tokens_asked}, "
                f"finish_reason {record.finish_reason}",
                now,
            )
        self.finished = True
        record.ended = now

    def _fail(self, kind: str, detail: str, now: float) -> None:
        self.drained = True
        if self.finished:
            return
        self.record.fail(kind, detail)
        self.record.ended = now
        self.finished = True


def _has_asked_length(record: RequestRecord) -> bool:
    """Whether an answer is as long as asked, by its usage, and by the finish reason, which servers
    without usage in streams give too."""
    by_usage = record.completion_tokens in (None, record.output_tokens_asked)
    return by_usage and record.finish_reason in (None, "length")


def _holds_text(delta: Delta | None) -> bool:
    return delta is not None and bool(
        delta.content
        or delta.reasoning_content
        or delta.reasoning
        or delta.tool_calls
        or delta.refusal
    )
