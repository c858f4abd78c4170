"""Whether an Ogg file is several, one after the other (RFC 3533, 4: chained streams)."""

from __future__ import annotations

_MARK = b"OggS\0"
_HEAD = 27
"""Bytes of a page before its table of lengths."""
_KIND = 5
_SEGMENTS = 26
_BEGINS = 0x02
"""The bit of a page that begins a logical stream."""


def is_chained(data: bytes) -> bool:
    """Whether a logical stream begins after another's content. Those that begin together lie
    beside one another, and are one file. What stands between pages is skipped, as is a page that
    is cut off."""
    at, begun = data.find(_MARK), False
    while at >= 0 and at + _HEAD <= len(data):
        begins = bool(data[at + _KIND] & _BEGINS)
        if begins and begun:
            return True
        begun = begun or not begins
        lengths = at + _HEAD + data[at + _SEGMENTS]
        end = lengths + sum(data[at + _HEAD : lengths])
        at = end if data.startswith(_MARK, end) else data.find(_MARK, at + len(_MARK))
    return False
