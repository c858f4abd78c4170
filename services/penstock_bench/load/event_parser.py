"""Server-sent events from bytes, in any split (WHATWG HTML, section 9.2)."""

from __future__ import annotations

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
