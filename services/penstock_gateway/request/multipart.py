"""A form with files, multipart/form-data (RFC 7578), read as it arrives.

python-multipart finds the parts. Only the values of fields and the one file are kept, both within
limits: anything beyond these is an error before memory is spent on it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from penstock.errors import InvalidRequest

MAX_PARTS = 64
MAX_FIELD_BYTES = 65_536
"""Bytes of a field's value."""
MAX_HEADERS = 16
"""Headers of a part."""
MAX_HEADER_BYTES = 8192
"""Bytes of a part's header."""
MAX_BOUNDARY = 70
"""Bytes (RFC 2046, 5.1.1)."""
_DISPOSITION = b"content-disposition"

# It would write what strangers send into our log.
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)


@dataclass(slots=True)
class Form:
    """fields: (name, value), in order.  file: its bytes; None: there was none, or it was written
    away.  file_name: what its sender calls it.  has_file: whether there was one."""

    fields: list[tuple[str, str]] = field(default_factory=list)
    file: bytes | None = None
    file_name: str = ""
    has_file: bool = False

    def take_file(self) -> bytes:
        """The file's bytes, which the form doesn't hold any more: what its taker lets go is free.
        Raises RuntimeError where there are none."""
        file, self.file = self.file, None
        if file is None:
            raise RuntimeError("the form has no file, or it was already read")
        return file


def boundary_of(content_type: bytes) -> bytes:
    """What stands between parts. Raises InvalidRequest for a body of another type."""
    kind, options = parse_options_header(content_type)
    if kind != b"multipart/form-data":
        raise InvalidRequest(
            "the request body must be multipart/form-data, with the file in the field file",
            code="invalid_form",
        )
    boundary = options.get(b"boundary", b"")
    if not 1 <= len(boundary) <= MAX_BOUNDARY:
        raise _broken(f"its content-type has no boundary of 1 to {MAX_BOUNDARY} bytes")
    return boundary


class FormReader:
    """Takes a body's bytes in any pieces.

    file_field: the field that holds the file.  take: asked for room for so many bytes of the file
    before they are kept; may raise.  write: takes the file's bytes in place of the form.
    """

    def __init__(
        self,
        boundary: bytes,
        file_field: str,
        take: Callable[[int], None],
        write: Callable[[bytes], None] | None = None,
    ) -> None:
        self._file_field = file_field
        self._take = take
        self._write = write
        self._form = Form()
        self._parts = 0
        self._name = ""
        self._value = bytearray()
        self._is_file = False
        self._ended = False
        self._key, self._header = bytearray(), bytearray()
        self._disposition = b""
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": self._add_key,
                "on_header_value": self._add_header,
                "on_header_end": self._end_header,
                "on_headers_finished": self._end_headers,
                "on_part_data": self._keep,
                "on_part_end": self._end_part,
                "on_end": self._end,
            },
            max_header_count=MAX_HEADERS,
            max_header_size=MAX_HEADER_BYTES,
        )

    def feed(self, data: bytes) -> None:
        """Raises InvalidRequest for what is no such form, or beyond its bounds."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _broken(str(error)[:200]) from None

    def finish(self) -> Form:
        """The form. Raises InvalidRequest where its end is missing."""
        if not self._ended:
            raise _broken("it ends before its last boundary")
        return self._form

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise _broken(f"it has more than {MAX_PARTS} parts, the maximum")
        self._value = bytearray()
        self._disposition = b""

    def _add_key(self, data: bytes, start: int, end: int) -> None:
        self._key += data[start:end]

    def _add_header(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _end_header(self) -> None:
        if self._key.lower() == _DISPOSITION:
            self._disposition = bytes(self._header)
        self._key, self._header = bytearray(), bytearray()

    def _end_headers(self) -> None:
        kind, options = parse_options_header(self._disposition)
        if kind != b"form-data" or b"name" not in options:
            raise _broken("a part has no content-disposition: form-data; name=…")
        self._name = options[b"name"].decode("utf-8", "replace")
        file_name = options.get(b"filename")
        self._is_file = self._name == self._file_field
        if self._is_file:
            if self._form.has_file:
                raise InvalidRequest(
                    f"{self._file_field} appears twice; one file is allowed",
                    param=self._file_field,
                )
            self._form.has_file = True
            self._form.file_name = (file_name or b"").decode("utf-8", "replace")
        elif file_name is not None:
            raise InvalidRequest(
                f"{self._name[:100]} is a file; only {self._file_field} may be a file",
                param=self._name[:100],
                code="unknown_parameter",
            )

    def _keep(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self._take(end - start)
            if self._write is not None:
                self._write(data[start:end])
                return
        elif len(self._value) + end - start > MAX_FIELD_BYTES:
            raise InvalidRequest(
                f"{self._name[:100]} has more than {MAX_FIELD_BYTES} bytes, the maximum",
                param=self._name[:100],
            )
        self._value += data[start:end]

    def _end_part(self) -> None:
        if self._is_file:
            self._form.file = bytes(self._value) if self._write is None else None
        else:
            try:
                text = self._value.decode()
            except UnicodeDecodeError:
                raise InvalidRequest(
                    f"{self._name[:100]} is not UTF-8", param=self._name[:100]
                ) from None
            self._form.fields.append((self._name, text))
        self._value = bytearray()

    def _end(self) -> None:
        self._ended = True


def _broken(reason: str) -> InvalidRequest:
    return InvalidRequest(
        f"the request body must be multipart/form-data: {reason}", code="invalid_form"
    )
