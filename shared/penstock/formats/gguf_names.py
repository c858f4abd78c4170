"""The names of GGUF files that were split into parts.

Apart from the reader, which needs numpy: whether a model is prepared already can be said without.
Source of the names: llama.cpp's gguf-split tool.
"""

from __future__ import annotations

import re
from pathlib import Path

from penstock.errors import ModelNotFound, UnsupportedModel

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
