"""Writes GGUF files: the header at once, then one tensor after another.

Source of the format: the GGUF specification in the ggml project (docs/gguf.md). The version is 3.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple

import numpy as np

from penstock.errors import UnsupportedModel
from penstock.formats.gguf import DEFAULT_ALIGNMENT, MAGIC, MIN_METADATA_ENTRY
from penstock.formats.gguf_cursor import STRING, Cursor, read_string, read_value
from penstock.formats.gguf_types import BLOCKS, TENSOR_TYPES
from penstock.formats.mapping import map_file

VERSION = 3
ValueType = Literal["uint32", "int32", "float32", "bool", "string"]
_CODES: dict[str, tuple[int, str]] = {
    "uint32": (4, "<I"),
    "int32": (5, "<i"),
    "float32": (6, "<f"),
    "bool": (7, "<?"),
}
_ARRAY = 9
_TYPE_CODES = {name: code for code, (name, _, _) in TENSOR_TYPES.items()}


def encoded_value(value: Any, kind: ValueType) -> bytes:
    """A value of the metadata with its type in front, as files have it. A list or an array becomes
    an array of values of the type."""
    if isinstance(value, list | tuple | np.ndarray):
        code = STRING if kind == "string" else _CODES[kind][0]
        head = struct.pack("<IIQ", _ARRAY, code, len(value))
        return head + b"".join(_bare(each, kind) for each in value)
    code = STRING if kind == "string" else _CODES[kind][0]
    return struct.pack("<I", code) + _bare(value, kind)


def _bare(value: Any, kind: ValueType) -> bytes:
    return _text(value) if kind == "string" else struct.pack(_CODES[kind][1], value)


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def metadata_bytes(path: Path) -> dict[str, bytes]:
    """A file's metadata by key, each value as `encoded_value` gives it: what is copied keeps its
    type. Raises UnsupportedModel for a file that is no sound GGUF file."""
    mapping = map_file(path, 1, UnsupportedModel(f"{path} is empty, not a GGUF file"))
    cursor = Cursor(mapping, str(path), vocabulary=False)
    cursor.take(len(MAGIC) + 4 + 8)
    count = cursor.unsigned64()
    cursor.expect_room(count, MIN_METADATA_ENTRY, "key-value pairs")
    found = {}
    for _ in range(count):
        key = read_string(cursor)
        begin = cursor.position
        read_value(cursor, cursor.unsigned32(), key)
        found[key] = mapping[begin : cursor.position]
    return found


class TensorEntry(NamedTuple):
    """A tensor that will be written. shape: row-major."""

    name: str
    shape: tuple[int, ...]
    type: str

    @property
    def size(self) -> int:
        """Bytes."""
        block = BLOCKS[self.type]
        return math.prod(self.shape) // block.elements * block.bytes


class GGUFWriter:
    """A file that is being written. Each tensor's bytes are written in the order of the entries, in
    as many pieces as are convenient. At the end of a `with`, all must be there."""

    def __init__(
        self, path: Path, metadata: Mapping[str, bytes], tensors: Sequence[TensorEntry]
    ) -> None:
        """metadata: as `metadata_bytes` has it. Writes the header."""
        self._entries = iter(tensors)
        self._left = 0
        self._file = path.open("wb")
        self._file.write(header(metadata, tensors))
        self._align()

    def __enter__(self) -> GGUFWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._file.close()
        if kind is None and (self._left or next(self._entries, None) is not None):
            raise ValueError("the file's tensors aren't all written")

    def begin(self) -> TensorEntry:
        """The next tensor, whose bytes are written from now on."""
        if self._left:
            raise ValueError(f"{self._left} bytes of the tensor before are missing")
        entry = next(self._entries)
        self._left = entry.size
        return entry

    def write(self, content: np.ndarray) -> None:
        """Further bytes of the tensor, uint8."""
        self._left -= content.nbytes
        if self._left < 0:
            raise ValueError(f"{-self._left} bytes too many for the tensor")
        self._file.write(content.data)
        if not self._left:
            self._align()

    def _align(self) -> None:
        self._file.write(bytes(-self._file.tell() % DEFAULT_ALIGNMENT))


def header(metadata: Mapping[str, bytes], tensors: Sequence[TensorEntry]) -> bytes:
    """All that comes before the tensors' data, without the padding."""
    parts = [MAGIC, struct.pack("<IQQ", VERSION, len(tensors), len(metadata))]
    for key, value in metadata.items():
        parts += [_text(key), value]
    return b"".join([*parts, *_descriptions(tensors)])


def _descriptions(tensors: Iterable[TensorEntry]) -> Iterable[bytes]:
    offset = 0
    for entry in tensors:
        dimensions = entry.shape[::-1]
        head = struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
        yield _text(entry.name) + head + struct.pack("<IQ", _TYPE_CODES[entry.type], offset)
        offset += entry.size + -entry.size % DEFAULT_ALIGNMENT
