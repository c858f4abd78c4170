"""A form with files, multipart/form-data (RFC 7578), read as it comes in.

Nothing is kept but the values of fields and the one file, both within bounds: what a client sends
beyond these is an error before memory is spent on it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from email.message import Message

from penstock.errors import InvalidRequest

MAX_PARTS = 64
MAX_FIELD_BYTES = 65_536
"""Of a field's value."""
MAX_HEAD_BYTES = 8192
"""Of a part's own headers."""
_BOUNDARY = re.compile(rb"[0-9A-Za-z'()+_,\-./:=? ]{0,69}[0-9A-Za-z'()+_,\-./:=?]")
_HEAD_END = b"\r\n\r\n"


@dataclass(slots=True)
class Form:
    """fields: (name, value), in order.  file: its bytes; None: there was none.  file_name: what
    its sender calls it."""

    fields: list[tuple[str, str]] = field(default_factory=list)
    file: bytes | None = None
    file_name: str = ""


def boundary_of(content_type: bytes) -> bytes:
    """What stands between parts. Raises InvalidRequest for a body of another type."""
    message = Message()
    message["content-type"] = content_type.decode("latin-1")
    boundary = message.get_param("boundary")
    if message.get_content_type() != "multipart/form-data":
        raise InvalidRequest(
            "the request's body must be multipart/form-data, with the recording in the field file",
            code="invalid_form",
        )
    found = boundary.encode("latin-1", "replace") if isinstance(boundary, str) else b""
    if _BOUNDARY.fullmatch(found) is None:
        raise _broken("its content-type has no boundary of 1 to 70 allowed characters")
    return found


class FormReader:
    """Takes a body's bytes in any pieces.

    file_field: the field that holds the file.  take: asked for room for so many bytes of the file
    before they are kept; may raise.
    """

    def __init__(self, boundary: bytes, file_field: str, take: Callable[[int], None]) -> None:
        self._delimiter = b"\r\n--" + boundary
        self._file_field = file_field
        self._take = take
        # The first delimiter stands at a line's beginning, without a line before it.
        self._buffer = bytearray(b"\r\n")
        self._step: Callable[[], bool] = self._preamble
        self._form = Form()
        self._parts = 0
        self._name = ""
        self._value = bytearray()
        self._is_file = False
        self._ended = False

    def feed(self, data: bytes) -> None:
        """Raises InvalidRequest for what is no such form, or beyond its bounds."""
        self._buffer += data
        while self._step():
            pass

    def finish(self) -> Form:
        """The form. Raises InvalidRequest where its end is missing."""
        if not self._ended:
            raise _broken("it ends before its last boundary")
        return self._form

    def _preamble(self) -> bool:
        """Skips what is before the first part."""
        at = self._buffer.find(self._delimiter)
        if at < 0:
            del self._buffer[: self._safe()]
            return False
        del self._buffer[: at + len(self._delimiter)]
        self._step = self._after_delimiter
        return True

    def _after_delimiter(self) -> bool:
        if len(self._buffer) < 2:
            return False
        if self._buffer[:2] == b"--":
            self._ended = True
            self._step = self._epilogue
            return True
        end = self._buffer.find(b"\r\n")
        if end < 0:
            self._bound_head()
            return False
        if self._buffer[:end].strip(b" \t"):
            raise _broken("something stands behind a boundary in its line")
        del self._buffer[: end + 2]
        self._step = self._head
        return True

    def _head(self) -> bool:
        end = self._buffer.find(_HEAD_END)
        if end < 0 or end > MAX_HEAD_BYTES:
            self._bound_head()
            return False
        head = bytes(self._buffer[:end])
        del self._buffer[: end + len(_HEAD_END)]
        self._begin(head)
        self._step = self._content
        return True

    def _content(self) -> bool:
        at = self._buffer.find(self._delimiter)
        size = at if at >= 0 else self._safe()
        if size:
            self._keep(bytes(self._buffer[:size]))
            del self._buffer[:size]
        if at < 0:
            return False
        del self._buffer[: len(self._delimiter)]
        self._end()
        self._step = self._after_delimiter
        return True

    def _epilogue(self) -> bool:
        self._buffer.clear()
        return False

    def _safe(self) -> int:
        """How many bytes hold no delimiter's beginning."""
        return max(0, len(self._buffer) - len(self._delimiter) + 1)

    def _bound_head(self) -> None:
        if len(self._buffer) > MAX_HEAD_BYTES:
            raise _broken(f"a part's headers have more than {MAX_HEAD_BYTES} bytes")

    def _begin(self, head: bytes) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise _broken(f"it has more than {MAX_PARTS} parts, the most that is allowed")
        self._name, file_name = _disposition(head)
        self._value = bytearray()
        self._is_file = self._name == self._file_field
        if self._is_file:
            if self._form.file is not None:
                raise InvalidRequest(
                    f"{self._file_field} is there twice; one recording is allowed",
                    param=self._file_field,
                )
            self._form.file_name = file_name or ""
        elif file_name is not None:
            raise InvalidRequest(
                f"{self._name[:100]} is a file; the one file that is taken stands in "
                f"{self._file_field}",
                param=self._name[:100],
                code="unknown_parameter",
            )

    def _keep(self, data: bytes) -> None:
        if self._is_file:
            self._take(len(data))
        elif len(self._value) + len(data) > MAX_FIELD_BYTES:
            raise InvalidRequest(
                f"{self._name[:100]} has more than {MAX_FIELD_BYTES} bytes, the most that is "
                "allowed",
                param=self._name[:100],
            )
        self._value += data

    def _end(self) -> None:
        if self._is_file:
            self._form.file = bytes(self._value)
        else:
            try:
                text = self._value.decode()
            except UnicodeDecodeError:
                raise InvalidRequest(
                    f"{self._name[:100]} is not UTF-8", param=self._name[:100]
                ) from None
            self._form.fields.append((self._name, text))
        self._value = bytearray()


def _disposition(head: bytes) -> tuple[str, str | None]:
    """Name and file name of a part. Raises InvalidRequest."""
    for line in head.split(b"\r\n"):
        key, colon, value = line.partition(b":")
        if colon and key.strip().lower() == b"content-disposition":
            message = Message()
            message["content-disposition"] = value.decode("utf-8", "replace").strip()
            name = message.get_param("name", header="content-disposition")
            if message.get_content_disposition() == "form-data" and isinstance(name, str):
                return name, message.get_filename()
    raise _broken("a part has no content-disposition: form-data; name=…")


def _broken(reason: str) -> InvalidRequest:
    return InvalidRequest(
        f"the request's body must be multipart/form-data: {reason}", code="invalid_form"
    )
