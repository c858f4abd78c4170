"""Reader of safetensors files: the header, and views on the mapped data.

Source of the format: the safetensors project's README.  A file is the header's length (8 bytes,
little-endian), a JSON header (name -> dtype, shape, data_offsets), and the data.  The header is
checked as the format demands: bounded, ranges inside the file, without gap or overlap, and
as long as dtype and shape say.
"""

from __future__ import annotations

import math
import mmap
import os
from pathlib import Path

import msgspec
import numpy as np

from penstock.errors import UnsupportedModel
from penstock.formats.mapping import map_file, release

MAX_HEADER_BYTES = 25_000_000
"""A quarter of what the format allows: some 200,000 tensors, where a large shard has 2,000. All of
it is decoded before anything can be checked, so it bounds time and memory."""
MAX_DIMENSIONS = 8
MAX_LENGTH = 1 << 48
"""Elements of a dimension."""
DTYPE_BYTES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U64": 8,
    "U32": 4,
    "U16": 2,
    "U8": 1,
    "BOOL": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
}


class SafetensorsTensor(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One tensor, its data still in the file.

    dtype: the format's name (F32, BF16, ...).  shape: row-major.
    data: uint8 [bytes], a read-only view on the mapping, no copy, little-endian elements.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: np.ndarray


_COMPARED = 16 << 20
"""Bytes that are compared at once."""


def same_content(one: SafetensorsTensor, other: SafetensorsTensor) -> bool:
    """Whether two tensors have equal values of one type and shape. Reads both up to the first
    difference."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    for at in range(0, one.data.nbytes, _COMPARED):
        part, same = (each.data[at : at + _COMPARED] for each in (one, other))
        if not np.array_equal(part, same):
            return False
        release(part)
        release(same)
    return True


class _Entry(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class SafetensorsFile:
    """A memory-mapped .safetensors file.

    tensors: name -> SafetensorsTensor, in the order of their data.  metadata: the header's own.
    Raises ModelNotFound if there is no such file, UnsupportedModel if it isn't a sound one.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        mapping = map_file(self.path, 8, _broken(self.path, "it is shorter than 8 bytes"))
        entries, self.metadata, start = _read_header(mapping, self.path)
        whole = np.frombuffer(mapping, dtype=np.uint8)[start:]
        _check_ranges(entries, len(whole), self.path)
        self.tensors = {
            name: SafetensorsTensor(
                name=name,
                dtype=entry.dtype,
                shape=tuple(entry.shape),
                data=whole[entry.data_offsets[0] : entry.data_offsets[1]],
            )
            for name, entry in entries
        }


def _broken(path: Path, why: str) -> UnsupportedModel:
    return UnsupportedModel(f"{path} is not a readable safetensors file: {why}; download it again")


def _read_header(
    mapping: mmap.mmap, path: Path
) -> tuple[list[tuple[str, _Entry]], dict[str, str], int]:
    """Entries ordered by their data's position, the header's metadata, where the data begins."""
    length = int.from_bytes(mapping[:8], "little")
    if length > min(MAX_HEADER_BYTES, len(mapping) - 8):
        raise _broken(path, f"its header claims {length} bytes, the file has {len(mapping)}")
    try:
        header = msgspec.json.decode(mapping[8 : 8 + length], type=dict[str, msgspec.Raw])
        raw_metadata = header.pop("__metadata__", msgspec.Raw(b"{}"))
        metadata = msgspec.json.decode(raw_metadata, type=dict[str, str] | None) or {}
        entries = [(name, msgspec.json.decode(raw, type=_Entry)) for name, raw in header.items()]
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _broken(path, f"its header is not valid: {error}") from None
    return sorted(entries, key=lambda item: item[1].data_offsets), metadata, 8 + length


def _check_ranges(entries: list[tuple[str, _Entry]], size: int, path: Path) -> None:
    position = 0
    for name, entry in entries:
        begin, end = entry.data_offsets
        if entry.dtype not in DTYPE_BYTES:
            raise _broken(path, f"tensor {name!r} has the unknown dtype {entry.dtype!r}")
        if begin != position or end < begin or end > size:
            raise _broken(
                path,
                f"tensor {name!r} lies at bytes {begin} to {end}; expected a range that begins at "
                f"{position} and ends by {size} (cut short?)",
            )
        if len(entry.shape) > MAX_DIMENSIONS:
            raise _broken(path, f"tensor {name!r} has {len(entry.shape)} dimensions")
        if any(not 0 <= length <= MAX_LENGTH for length in entry.shape):
            raise _broken(path, f"tensor {name!r} has the shape {entry.shape}")
        if end - begin != math.prod(entry.shape) * DTYPE_BYTES[entry.dtype]:
            raise _broken(
                path,
                f"tensor {name!r} takes {end - begin} bytes, "
                f"but is {entry.dtype} of shape {entry.shape}",
            )
        position = end
    if position != size:
        raise _broken(path, f"{size - position} bytes at its end belong to no tensor")
