"""The answer to one request: bytes and their arrival times in, a RequestRecord out. No I/O."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock_bench.load.record import ErrorKind, RequestRecord

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


# An HTTP/1.1 response read from bytes, without I/O: just what a load generator needs, so that a
# chunk costs a few microseconds (RFC 9112).

MAX_HEAD_BYTES = 65_536
_MAX_SIZE_LINE = 1024


class ProtocolError(ValueError):
    """The bytes are no HTTP/1.1 response."""


class ResponseParser:
    """Feed it bytes, get the body's bytes.

    status: 0 until the head is complete, then the final status (1xx are passed over).
    headers: lower-case names.
    complete: the body is all there.
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.complete = False
        self._rest = b""
        self._chunked = False
        self._left: int | None = None  # body (or chunk) bytes to come; None: up to the end
        self._in_chunk = False
        self._in_trailers = False

    def feed(self, data: bytes) -> bytes:
        """Takes what arrived, returns the body bytes in it. Raises ProtocolError."""
        if self._rest:
            data = self._rest + data
            self._rest = b""
        while not self.status:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                if len(data) > MAX_HEAD_BYTES:
                    raise ProtocolError(f"the head is longer than {MAX_HEAD_BYTES} bytes")
                self._rest = data
                return b""
            self._head(data[:end])
            data = data[end + 4 :]
        if self.complete:
            return b""
        if self._chunked:
            return self._dechunk(data)
        if self._left is None:
            return data
        body = data[: self._left]
        self._left -= len(body)
        self.complete = not self._left
        return body

    def end(self) -> None:
        """The connection ended: completes a body that is delimited by the end, and only that."""
        if self.status and not self._chunked and self._left is None:
            self.complete = True

    def _head(self, head: bytes) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        code = rest[:3]
        if not version.startswith("HTTP/1.") or not (code.isascii() and code.isdigit()):
            raise ProtocolError(f"not an HTTP/1.1 status line: {first[:80]!r}")
        status = int(code)
        if not 100 <= status <= 599:
            raise ProtocolError(f"no such status: {status}")
        if status < 200:
            return
        self.status = status
        for line in lines:
            name, _, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()
        self._frame()

    def _frame(self) -> None:
        self._chunked = "chunked" in self.headers.get("transfer-encoding", "").lower()
        length = self.headers.get("content-length")
        if self.status in (204, 304):
            self.complete = True
        elif not self._chunked and length is not None:
            if not (length.isascii() and length.isdigit()):
                raise ProtocolError(f"bad content-length: {length[:40]!r}")
            self._left = int(length)
            self.complete = self._left == 0

    def _dechunk(self, data: bytes) -> bytes:
        parts: list[bytes] = []
        at = 0
        while True:
            if self._in_chunk:
                at = self._chunk_data(data, at, parts)
                if self._in_chunk:
                    break
            end = data.find(b"\r\n", at)
            if end < 0:
                self._keep(data, at)
                break
            line = data[at:end]
            at = end + 2
            if self._in_trailers:
                if not line:
                    self.complete = True
                    break
            else:
                self._size_line(line)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _size_line(self, line: bytes) -> None:
        digits = line.partition(b";")[0].strip()
        try:
            if not digits.isalnum():  # int() would take a sign and underscores too
                raise ValueError
            size = int(digits, 16)
        except ValueError:
            raise ProtocolError(f"bad chunk size: {line[:40]!r}") from None
        self._left = size
        self._in_chunk = size > 0
        self._in_trailers = size == 0

    def _chunk_data(self, data: bytes, at: int, parts: list[bytes]) -> int:
        """Takes what `data` has of the current chunk and of the line end after it."""
        left = self._left or 0
        if left:
            piece = data[at : at + left]
            if piece:
                parts.append(piece)
            at += len(piece)
            self._left = left = left - len(piece)
        if not left:
            line_end = data[at : at + 2]
            if line_end == b"\r\n":
                self._in_chunk = False
                return at + 2
            if line_end not in (b"", b"\r"):
                raise ProtocolError("a chunk is longer than its size says")
        self._keep(data, at)
        return at

    def _keep(self, data: bytes, at: int) -> None:
        self._rest = data[at:]
        if len(self._rest) > _MAX_SIZE_LINE:
            raise ProtocolError(f"a chunk-size line is longer than {_MAX_SIZE_LINE} bytes")


# Server-sent events from bytes, in any split (WHATWG HTML, section 9.2).

MAX_EVENT_BYTES = 1 << 20
_BOM = b"\xef\xbb\xbf"


class EventTooLarge(ValueError):
    """One event is longer than MAX_EVENT_BYTES."""


class EventParser:
    """Collects the `data` of each event; comments and other fields are skipped, as the
    load generator has no use for them."""

    def __init__(self) -> None:
        self._tail = b""
        self._data: list[bytes] = []
        self._size = 0
        self._after_return = False
        self._at_start = True

    def feed(self, chunk: bytes) -> list[bytes]:
        """Takes the next bytes of the stream; returns the data of the events that they complete.

        An event that the stream's end cuts off is never returned. Raises EventTooLarge.
        """
        if not chunk:
            return []
        if self._after_return:
            self._after_return = False
            if chunk[:1] == b"\n":  # the second half of a line end that was split in two
                chunk = chunk[1:]
        text = self._tail + chunk if self._tail else chunk
        if self._at_start:
            if len(text) < len(_BOM) and _BOM.startswith(text):
                self._tail = text
                return []
            text = text.removeprefix(_BOM)
            self._at_start = False
        lines = text.splitlines()
        if text and text[-1:] not in (b"\n", b"\r"):
            self._tail = lines.pop()
        else:
            self._tail = b""
            self._after_return = text[-1:] == b"\r"
        events = [event for line in lines if (event := self._line(line)) is not None]
        if self._size + len(self._tail) > MAX_EVENT_BYTES:
            raise EventTooLarge(f"an event is longer than {MAX_EVENT_BYTES} bytes")
        return events

    def _line(self, line: bytes) -> bytes | None:
        if not line:
            if not self._data:
                return None
            event = b"\n".join(self._data)
            self._data.clear()
            self._size = 0
            return event
        if line.startswith(b"data:"):
            value = line[6:] if line[5:6] == b" " else line[5:]
        elif line == b"data":
            value = b""
        else:
            return None
        self._data.append(value)
        self._size += len(value) + 1
        return None
