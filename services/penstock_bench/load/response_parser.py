"""An HTTP/1.1 response read from bytes, without I/O: just what a load generator needs, so that a
chunk costs a few microseconds (RFC 9112)."""

from __future__ import annotations

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
