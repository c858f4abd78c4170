"""Reader of GGUF files, versions 2 and 3, little-endian.

Source of the format: the GGUF specification in the ggml project (docs/gguf.md).  A file is a
header, key-value metadata, tensor descriptions, padding, and tensor data.  Nothing in the file is
trusted: every count, length and offset is checked against the file's size before it is used, so
a broken or hostile file gives UnsupportedModel and never a huge allocation or a wild read. What a
large file could truthfully claim is bounded as well: entries, tensors, elements of arrays, and the
bytes of all that comes before the tensors' data.
"""

from __future__ import annotations

import math
import mmap
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from penstock.errors import UnsupportedModel
from penstock.formats.gguf_cursor import Cursor, read_string, read_value
from penstock.formats.gguf_types import TENSOR_TYPES
from penstock.formats.mapping import map_file

MAGIC = b"GGUF"
SUPPORTED_VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
MAX_ENTRIES = 1 << 16
"""Key-value pairs, or tensors. Models have some 50 pairs and some thousands of tensors."""
MIN_METADATA_ENTRY = 8 + 4 + 1
"""Bytes that the shortest key-value pair takes: key length, value type, a one-byte value."""
MIN_TENSOR_ENTRY = 8 + 4 + 8 + 4 + 8
"""Bytes that the shortest tensor description takes: name length, rank, dimension, type, offset."""


class GGUFTensor(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One tensor, its data still in the file.

    shape: row-major, so the reverse of GGUF's own order.  type: F32, Q4_1, Q8_0, ...
    data: uint8 [bytes], a read-only view on the mapping, no copy.
    """

    name: str
    shape: tuple[int, ...]
    type: str
    data: np.ndarray


class GGUFFile:
    """A memory-mapped GGUF file.

    metadata: key -> int, float, bool, str, or a list of one of them.
    tensors: name -> GGUFTensor, in the file's order.
    vocabulary: whether arrays of strings are wanted. Those of a tokenizer take most of the time to
    read; without them, they are empty lists.
    Raises ModelNotFound if there is no such file, UnsupportedModel if it isn't a sound GGUF file.
    The mapping lives as long as the object or any tensor's data does.
    """

    def __init__(self, path: str | os.PathLike[str], *, vocabulary: bool = True) -> None:
        self.path = Path(path)
        mapping = map_file(self.path, 1, UnsupportedModel(f"{self.path} is empty, not a GGUF file"))
        cursor = Cursor(mapping, str(self.path), vocabulary=vocabulary)
        self.version = _read_version(cursor)
        num_tensors = cursor.unsigned64()
        num_metadata = cursor.unsigned64()
        _expect_entries(cursor, num_metadata, MIN_METADATA_ENTRY, "key-value pairs")
        self.metadata = _read_metadata(cursor, num_metadata)
        _expect_entries(cursor, num_tensors, MIN_TENSOR_ENTRY, "tensors")
        self.tensors = _read_tensors(cursor, num_tensors, self.alignment, mapping)

    @property
    def alignment(self) -> int:
        """Bytes to a multiple of which tensor data is aligned."""
        value = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(value) is not int or value < 8 or value > 1 << 20 or value & (value - 1):
            raise UnsupportedModel(
                f"{self.path}: general.alignment is {value!r}; it must be a power of two, 8 or more"
            )
        return value


def _read_version(cursor: Cursor) -> int:
    if cursor.take(4) != MAGIC:
        raise cursor.broken("it doesn't begin with the bytes GGUF")
    version = cursor.unsigned32()
    if version in SUPPORTED_VERSIONS:
        return version
    if version & 0xFFFF == 0:
        raise cursor.broken("it is big-endian; only little-endian files are read")
    raise cursor.broken(f"its version is {version}; versions 2 and 3 are read")


def _expect_entries(cursor: Cursor, count: int, each: int, what: str) -> None:
    cursor.expect_room(count, each, what)
    if count > MAX_ENTRIES:
        raise cursor.broken(f"it has {count} {what}; at most {MAX_ENTRIES} are allowed")


def _read_metadata(cursor: Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(count):
        key = read_string(cursor)
        if key in metadata:
            raise cursor.broken(f"the key {key!r} occurs twice")
        metadata[key] = read_value(cursor, cursor.unsigned32(), key)
    return metadata


def _read_tensors(
    cursor: Cursor, count: int, alignment: int, mapping: mmap.mmap
) -> dict[str, GGUFTensor]:
    described = [_read_description(cursor) for _ in range(count)]
    start = -(-cursor.position // alignment) * alignment
    whole = np.frombuffer(mapping, dtype=np.uint8)
    tensors: dict[str, GGUFTensor] = {}
    for name, shape, kind, size, offset in described:
        if name in tensors:
            raise cursor.broken(f"the tensor {name!r} occurs twice")
        if offset % alignment:
            raise cursor.broken(f"tensor {name!r} begins at {offset}, not aligned to {alignment}")
        if start + offset + size > len(whole):
            raise cursor.broken(
                f"tensor {name!r} ends at byte {start + offset + size}, "
                f"the file at {len(whole)} (cut short?)"
            )
        data = whole[start + offset : start + offset + size]
        tensors[name] = GGUFTensor(name=name, shape=shape, type=kind, data=data)
    _expect_disjoint(cursor, sorted((offset, size, name) for name, _, _, size, offset in described))
    return tensors


def _expect_disjoint(cursor: Cursor, places: list[tuple[int, int, str]]) -> None:
    """places: offset, bytes and name of each tensor, by offset."""
    for (offset, size, name), (following, _, other) in pairwise(places):
        if offset + size > following:
            raise cursor.broken(f"the tensors {name!r} and {other!r} overlap")


def _read_description(cursor: Cursor) -> tuple[str, tuple[int, ...], str, int, int]:
    """Name, row-major shape, type, bytes of data, offset of the data."""
    name = read_string(cursor)
    rank = cursor.unsigned32()
    if not 1 <= rank <= MAX_DIMENSIONS:
        raise cursor.broken(f"tensor {name!r} has {rank} dimensions; 1 to {MAX_DIMENSIONS} allowed")
    dimensions = [cursor.unsigned64() for _ in range(rank)]
    type_code = cursor.unsigned32()
    offset = cursor.unsigned64()
    if type_code not in TENSOR_TYPES:
        raise cursor.broken(f"tensor {name!r} has the unknown type {type_code}")
    kind, block, block_bytes = TENSOR_TYPES[type_code]
    if 0 in dimensions or dimensions[0] % block:
        raise cursor.broken(
            f"tensor {name!r} has dimensions {dimensions}; the first must be a positive multiple "
            f"of {block} for type {kind}"
        )
    size = math.prod(dimensions) // block * block_bytes
    return name, tuple(reversed(dimensions)), kind, size, offset
