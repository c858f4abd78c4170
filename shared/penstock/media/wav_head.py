"""What a WAV file says of its own length, which may be a lie."""

from __future__ import annotations

import struct

_HEAD = 12
_CHUNK = struct.Struct("<4sI")
_UNKNOWN = 0x7FFF_0000
"""The length from which on one stands for "until the end": programs that stream write such."""
MAX_CHUNKS = 1024
"""Most chunks that are looked through for the samples'."""


def with_length(data: bytes) -> bytes:
    """The file with the length of its samples, where its head says 0 and samples follow: programs
    that stream leave it so."""
    at = _HEAD
    for _ in range(MAX_CHUNKS):
        if at + _CHUNK.size > len(data):
            return data
        name, size = _CHUNK.unpack_from(data, at)
        at += _CHUNK.size
        if name == b"data":
            if size or _are_chunks(data, at):
                return data
            rest = min(len(data) - at, _UNKNOWN)
            return data[: at - 4] + rest.to_bytes(4, "little") + data[at:]
        at += size + size % 2
    return data


def _are_chunks(data: bytes, at: int) -> bool:
    """Whether nothing but whole chunks follows, so that there are no samples indeed."""
    for _ in range(MAX_CHUNKS):
        if at >= len(data):
            return True
        if at + _CHUNK.size > len(data):
            return False
        _, size = _CHUNK.unpack_from(data, at)
        at += _CHUNK.size + size + size % 2
        if at > len(data) + 1:
            return False
    return False


def missing_bytes(data: bytes) -> int:
    """How many bytes of samples the file announces and lacks; 0 for one that doesn't say."""
    at = _HEAD
    for _ in range(MAX_CHUNKS):
        if at + _CHUNK.size > len(data):
            return 0
        name, size = _CHUNK.unpack_from(data, at)
        at += _CHUNK.size
        if name == b"data":
            return 0 if size >= _UNKNOWN else max(0, at + size - len(data))
        at += size + size % 2
    return 0
