"""Reads a stranger's small files: regular ones, and no more of them than a bound.

A folder may hold links to devices, which have no end, and pipes, at which a reader waits for ever.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

from penstock.errors import UnsupportedModel

DEEPEST = 64
"""Levels of a JSON file."""


def open_regular(path: Path) -> BinaryIO:
    """Opens a file for reading, without waiting. Raises OSError, or UnsupportedModel for a device,
    a pipe or a folder."""
    # Without O_NONBLOCK, a pipe without a writer would block right here.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise UnsupportedModel(f"{path} is not a regular file")
    return os.fdopen(handle, "rb")


def named_path(name: str) -> Path | None:
    """The path that somebody gave a name of, if something is there. None for what can't be a path:
    too long, of a user who doesn't exist, or with a NUL."""
    try:
        path = Path(name).expanduser()
        return path if path.exists() else None
    except (OSError, ValueError, RuntimeError):
        return None


def read_small(path: Path, most: int) -> bytes:
    """A whole file of at most `most` bytes. Raises OSError, or UnsupportedModel if it is larger or
    no regular file."""
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise UnsupportedModel(f"{path} is larger than {most} bytes")
    return content


def read_json(path: Path, most: int) -> Any:
    """Returns the content of a JSON file of at most `most` bytes. Raises FileNotFoundError, or
    UnsupportedModel if it can't be read, holds lone surrogates, which no message can have, or is
    nested so deeply that walking it might overflow the stack."""
    try:
        text = read_small(path, most).decode("utf-8-sig")
        values = json.loads(text)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise UnsupportedModel(f"{path} is not readable JSON: {error}") from None
    if _nests_deeper(values, DEEPEST):
        raise UnsupportedModel(f"{path} is nested deeper than {DEEPEST} levels")
    if "\\u" in text:
        try:
            json.dumps(values, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise UnsupportedModel(f"{path} is not readable JSON: {error}") from None
    return values


def _nests_deeper(values: Any, most: int) -> bool:
    """Whether lists and objects lie in one another so often. A level at a time, without
    recursion."""
    level = [values]
    for _ in range(most):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return False
    return any(isinstance(each, (list, dict)) for each in level)


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
