"""Records in a file: [length, uint32][crc32, uint32][payload], little-endian, one after another.

A file begins with MAGIC, then a Header, then the snapshot, compressed; then events.  A record that
a killed process left half written isn't reported as damage: it is the last one, and nothing
follows.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from penstock.errors import InvalidRequest

MAGIC = b"penstock record 1\n"
SUFFIX = ".penlog"
MAX_RECORD = 2**30
"""Bytes; more is damage."""

_PREFIX = struct.Struct("<II")


class Header(msgspec.Struct, kw_only=True):
    """events, parts: names that records refer to by index. sources: digest of the program.
    number: of the file in the engine's life, from 1.  started: Unix time, seconds."""

    version: str
    sources: str
    boot: str
    number: int
    started: float
    events: list[str]
    parts: list[str]


class Torn(Exception):
    """The file ends in the middle of a record, as a killed process leaves it."""


class Damaged(InvalidRequest):
    """The file isn't what was written."""


def framed(payload: bytes) -> bytes:
    return _PREFIX.pack(len(payload), zlib.crc32(payload)) + payload


def payloads(file: BinaryIO, name: str) -> Iterator[bytes]:
    """Every record of a file that is open at its beginning. Raises Damaged, or Torn at the end."""
    if file.read(len(MAGIC)) != MAGIC:
        raise Damaged(f"{name} is not a recording: its first bytes are not {MAGIC!r}")
    number = 0
    while prefix := file.read(_PREFIX.size):
        number += 1
        length, checksum = _PREFIX.unpack(prefix) if len(prefix) == _PREFIX.size else (0, -1)
        if length > MAX_RECORD:
            raise Damaged(f"{name}: record {number} has a length of {length} bytes")
        payload = file.read(length)
        if len(payload) < length or zlib.crc32(payload) != checksum:
            if not file.read(1):
                raise Torn(f"record {number} is cut off")
            raise Damaged(f"{name}: the checksum of record {number} is wrong")
        yield payload


def log_files(paths: list[str]) -> list[Path]:
    """The files that `paths` name, in the order of writing; a folder means all of its recordings.

    Raises InvalidRequest where there is nothing.
    """
    found: list[Path] = []
    for name in paths:
        path = Path(name)
        inside = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]
        if not inside or not inside[0].is_file():
            raise InvalidRequest(f"{name}: no recording found (*{SUFFIX})")
        found += inside
    return found
