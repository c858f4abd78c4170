"""Writes safetensors files, one tensor after another: several files where a model is large.

Source of the format: the safetensors project's description of it.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

INDEX = "model.safetensors.index.json"
_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1}
_BYTES |= {"BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1}


class Entry(NamedTuple):
    """A tensor that will be written."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * _BYTES[self.dtype]


def shards(entries: Sequence[Entry], most: int) -> list[list[Entry]]:
    """The tensors in files of at most `most` bytes; a larger one has a file of its own."""
    found: list[list[Entry]] = [[]]
    for entry in entries:
        if found[-1] and sum(each.size for each in found[-1]) + entry.size > most:
            found.append([])
        found[-1].append(entry)
    return found


def shard_names(count: int) -> list[str]:
    """What so many files are called."""
    if count == 1:
        return ["model.safetensors"]
    return [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]


class SafetensorsWriter:
    """Files that are being written. Each tensor's bytes are written in the order of the entries, in
    as many pieces as are convenient."""

    def __init__(self, folder: Path, entries: Sequence[Entry], most: int) -> None:
        """most: bytes of a file, if its tensors aren't larger."""
        self._folder = folder
        self._parts = shards(entries, most)
        self._names = shard_names(len(self._parts))

    def write(self, pieces: Iterator[tuple[Entry, Iterator[np.ndarray]]]) -> None:
        """pieces: for each entry its bytes, uint8. Raises ValueError where they aren't all
        there."""
        for name, part in zip(self._names, self._parts, strict=True):
            with (self._folder / name).open("wb") as file:
                file.write(_header(part))
                for entry in part:
                    found, content = next(pieces)
                    if found != entry:
                        raise ValueError(f"{found.name} was written in the place of {entry.name}")
                    written = 0
                    for piece in content:
                        file.write(piece.data)
                        written += piece.nbytes
                    if written != entry.size:
                        raise ValueError(f"{entry.name} has {written} bytes, not {entry.size}")
        if len(self._parts) > 1:
            self._write_index()

    def _write_index(self) -> None:
        whole = sum(entry.size for part in self._parts for entry in part)
        places = {
            entry.name: name
            for name, part in zip(self._names, self._parts, strict=True)
            for entry in part
        }
        content = {"metadata": {"total_size": whole}, "weight_map": places}
        (self._folder / INDEX).write_text(json.dumps(content, indent=2), "utf-8")


def _header(part: Sequence[Entry]) -> bytes:
    described: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for entry in part:
        ends = [at, at + entry.size]
        described[entry.name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": ends,
        }
        at += entry.size
    raw = json.dumps(described).encode()
    raw += b" " * (-len(raw) % 8)
    return struct.pack("<Q", len(raw)) + raw
