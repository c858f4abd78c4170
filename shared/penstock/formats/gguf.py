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
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from penstock.errors import UnsupportedModel
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


# Values of a GGUF file's metadata, read through a cursor that checks every bound.

BOOL, STRING, ARRAY = 7, 8, 9
MAX_ARRAY_DEPTH = 4
MAX_ELEMENTS = 1 << 22
"""Most elements of all arrays together. A vocabulary of 262,144 tokens has 514,906 merges, scores
and types."""
MAX_HEADER_BYTES = 256 << 20
"""Most bytes of all that comes before the tensors' data."""
SCALARS: dict[int, str] = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    BOOL: "<u1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
"""Code of a value type -> the numpy type that it is stored as."""

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class Cursor:
    """A read position in a mapped file. Reading past the end raises UnsupportedModel."""

    def __init__(self, mapping: mmap.mmap, name: str, *, vocabulary: bool = True) -> None:
        self.mapping = mapping
        self.vocabulary = vocabulary
        """Whether arrays of strings are read; else they are passed over, and empty."""
        self.size = len(mapping)
        self.position = 0
        self._name = name
        self._elements = 0

    def broken(self, why: str) -> UnsupportedModel:
        """The error to raise for this file."""
        return UnsupportedModel(
            f"{self._name} is not a readable GGUF file: {why}; download it again"
        )

    def expect_room(self, count: int, each: int, what: str) -> None:
        """Refuse a count that the rest of the file can't hold, before anything is allocated."""
        if count * each > self.size - self.position:
            raise self.broken(
                f"it claims {count} {what} at byte {self.position} of {self.size} (cut short?)"
            )
        if self.position + count * each > MAX_HEADER_BYTES:
            raise self.broken(f"its header is longer than {MAX_HEADER_BYTES} bytes")

    def count_elements(self, count: int, key: str) -> None:
        """Refuse more elements of arrays than a model can need."""
        self._elements += count
        if self._elements > MAX_ELEMENTS:
            raise self.broken(
                f"its arrays up to {key!r} have {self._elements} elements; at most {MAX_ELEMENTS} "
                "are allowed"
            )

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        self.expect_room(count, 1, "bytes")
        begin = self.position
        self.position = begin + count
        return self.mapping[begin : self.position]

    def unsigned32(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def unsigned64(self) -> int:
        return int(_U64.unpack(self.take(8))[0])


def read_string(cursor: Cursor) -> str:
    """A length-prefixed UTF-8 string."""
    raw = cursor.take(cursor.unsigned64())
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise cursor.broken(f"a string before byte {cursor.position} is not UTF-8") from error


def read_value(cursor: Cursor, kind: int, key: str, depth: int = 0) -> Any:
    """A value of the given type code: a Python scalar, a str, or a list."""
    if kind == STRING:
        return read_string(cursor)
    if kind == ARRAY:
        return _read_array(cursor, key, depth)
    return _read_scalars(cursor, kind, 1, key)[0]


def _read_array(cursor: Cursor, key: str, depth: int) -> list[Any]:
    if depth >= MAX_ARRAY_DEPTH:
        raise cursor.broken(f"{key!r} nests arrays deeper than {MAX_ARRAY_DEPTH}")
    kind = cursor.unsigned32()
    count = cursor.unsigned64()
    if kind == STRING:
        return _read_strings(cursor, count, key)
    if kind == ARRAY:
        cursor.expect_room(count, 12, f"arrays in {key!r}")
        cursor.count_elements(count, key)
        return [_read_array(cursor, key, depth + 1) for _ in range(count)]
    return _read_scalars(cursor, kind, count, key)


def _read_scalars(cursor: Cursor, kind: int, count: int, key: str) -> list[Any]:
    if kind not in SCALARS:
        raise cursor.broken(f"{key!r} has the unknown value type {kind}")
    dtype = np.dtype(SCALARS[kind])
    cursor.expect_room(count, dtype.itemsize, f"elements in {key!r}")
    cursor.count_elements(count, key)
    values = np.frombuffer(cursor.take(count * dtype.itemsize), dtype)
    return [value != 0 for value in values.tolist()] if kind == BOOL else values.tolist()


def _read_strings(cursor: Cursor, count: int, key: str) -> list[str]:
    """A vocabulary has 50,000 to 250,000 of these, hence the tight loop without method calls."""
    cursor.expect_room(count, 8, f"strings in {key!r}")
    cursor.count_elements(count, key)
    mapping, size, position = cursor.mapping, cursor.size, cursor.position
    length_at = _U64.unpack_from
    if not cursor.vocabulary:
        _pass_strings(cursor, count, key)
        return []
    strings: list[str] = []
    try:
        for _ in range(count):
            begin = position + 8
            position = begin + length_at(mapping, position)[0]
            if position > size:
                raise cursor.broken(f"a string in {key!r} ends after the file does (cut short?)")
            if position > MAX_HEADER_BYTES:
                raise cursor.broken(f"its header is longer than {MAX_HEADER_BYTES} bytes")
            strings.append(mapping[begin:position].decode())
    except struct.error as error:
        raise cursor.broken(f"the strings of {key!r} are cut short") from error
    except UnicodeDecodeError as error:
        raise cursor.broken(f"a string in {key!r} is not UTF-8") from error
    cursor.position = position
    return strings


def _pass_strings(cursor: Cursor, count: int, key: str) -> None:
    """Passes over strings: only their lengths are read, and where the last one ends is checked, as
    none begins after it."""
    mapping, position, length_at = cursor.mapping, cursor.position, _U64.unpack_from
    try:
        for _ in range(count):
            position += 8 + length_at(mapping, position)[0]
    except (struct.error, OverflowError) as error:
        raise cursor.broken(f"the strings of {key!r} are cut short") from error
    if position > cursor.size:
        raise cursor.broken(f"a string in {key!r} ends after the file does (cut short?)")
    if position > MAX_HEADER_BYTES:
        raise cursor.broken(f"its header is longer than {MAX_HEADER_BYTES} bytes")
    cursor.position = position


# The tensor types of GGUF: how many elements a block has, and how many bytes it takes.
#
# Source: the ggml_type enumeration and the block structs of ggml. Codes that are missing here were
# withdrawn from the format.

TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
    42: ("Q2_0", 64, 18),
}
"""Type code -> (name, elements per block, bytes per block)."""


QUANTISED_TYPES = (
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    *("IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4"),
    *("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"),
    *("TQ1_0", "TQ2_0", "Q1_0", "Q2_0"),
)
"""Quantised types that workers can decode."""

READ_TYPES = frozenset(("F32", "F16", "BF16", *QUANTISED_TYPES))
"""Types that workers can decode. The others are no weights."""


class Block(NamedTuple):
    """The unit that a tensor type is stored in."""

    elements: int
    bytes: int


BLOCKS = {name: Block(elements, size) for name, elements, size in TENSOR_TYPES.values()}
"""Blocks by the type's name."""
