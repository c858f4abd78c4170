"""GGUF files that were split into parts.

Source of the format: llama.cpp's gguf-split tool. Part n of m is called NAME-0000n-of-0000m.gguf.
Each part is a GGUF file of its own with some of the tensors. The first has the metadata; in the
others are only `split.no` (from 0), `split.count` and `split.tensors.count` (of all parts
together), which the first has too.
"""

from __future__ import annotations

import copy
from pathlib import Path

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.formats.gguf import GGUFFile, GGUFTensor
from penstock.formats.gguf_names import part_paths


def open_gguf(path: Path) -> GGUFFile:
    """The file, or all its parts as one: the first part's metadata, and everyone's tensors.

    path: of any part. Raises ModelNotFound or UnsupportedModel, which say which part is missing,
    broken, or doesn't belong to the others.
    """
    paths = part_paths(path)
    files = [GGUFFile(part) for part in paths]
    for index, file in enumerate(files):
        _check_part(file, index, len(files))
    if len(files) == 1:
        return files[0]
    whole = copy.copy(files[0])
    whole.tensors = _joined(files)
    _check_total(files[0], len(whole.tensors))
    return whole


def _check_part(file: GGUFFile, index: int, count: int) -> None:
    fields = Fields(file.metadata, str(file.path))
    stated = fields.integer("split.count", 1)
    # A file that never was split has no split.count, or 0.
    if max(stated, 1) != count:
        raise UnsupportedModel(
            f"{file.path} says that it is one of {stated} parts (split.count), but its name makes "
            f"it one of {count}; parts are called NAME-00001-of-{max(stated, 1):05}.gguf and so on"
        )
    number = fields.integer("split.no", 0)
    if number != index:
        raise UnsupportedModel(
            f"{file.path} says that it is part {number + 1} (split.no is {number}), but its name "
            f"makes it part {index + 1}"
        )


def _joined(files: list[GGUFFile]) -> dict[str, GGUFTensor]:
    tensors: dict[str, GGUFTensor] = {}
    for file in files:
        twice = next((name for name in file.tensors if name in tensors), None)
        if twice is not None:
            raise UnsupportedModel(f"{file.path}: an earlier part has the tensor {twice!r} too")
        tensors.update(file.tensors)
    return tensors


def _check_total(first: GGUFFile, found: int) -> None:
    stated = Fields(first.metadata, str(first.path)).integer("split.tensors.count", found)
    if stated != found:
        raise UnsupportedModel(
            f"{first.path} says that all parts have {stated} tensors together "
            f"(split.tensors.count); they have {found}"
        )
