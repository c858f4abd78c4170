"""GGUF files that were split into parts.

Source of the format: llama.cpp's gguf-split tool. Part n of m is called NAME-0000n-of-0000m.gguf.
Each part is a GGUF file of its own with some of the tensors. The first has the metadata; in the
others are only `split.no` (from 0), `split.count` and `split.tensors.count` (of all parts
together), which the first has too.
"""

from __future__ import annotations

import copy
import re
from pathlib import Path

from penstock.errors import ModelNotFound, UnsupportedModel
from penstock.formats.fields import Fields
from penstock.formats.gguf import GGUFFile, GGUFTensor

MAX_PARTS = 1024
_PART_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})", re.DOTALL)


def stem_of(path: Path) -> str:
    """The file's name without suffix and without the number of a part."""
    found = _PART_NAME.fullmatch(path.stem)
    return found["stem"] if found else path.stem


def part_paths(path: Path) -> list[Path]:
    """All parts of the file that `path` is a part of, in order; [path] if its name isn't a part's.

    Raises ModelNotFound, naming it, if a part is missing, UnsupportedModel if the name makes no
    sense.
    """
    found = _PART_NAME.fullmatch(path.stem)
    if found is None:
        return [path]
    number, count = int(found["number"]), int(found["count"])
    if not 1 <= number <= count or count > MAX_PARTS:
        raise UnsupportedModel(
            f"{path} is called part {number} of {count}; parts are counted from 1, and at most "
            f"{MAX_PARTS} are allowed"
        )
    parts = [
        path.with_name(f"{found['stem']}-{each:05}-of-{count:05}{path.suffix}")
        for each in range(1, count + 1)
    ]
    missing = [part.name for part in parts if not part.exists()]
    if missing:
        raise ModelNotFound(
            f"{path} is part {number} of {count}, and {len(missing)} of the others are not beside "
            f"it: {', '.join(missing[:4])}{', …' if len(missing) > 4 else ''}"
        )
    return parts


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
