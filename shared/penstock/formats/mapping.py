"""Memory maps of weight files."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from penstock.errors import ModelNotFound, UnsupportedModel
from penstock.formats.small_file import open_regular


def map_file(path: Path, least: int, too_short: UnsupportedModel) -> mmap.mmap:
    """The whole file, read-only.

    Raises ModelNotFound if there is none, too_short if it has fewer than `least` bytes (at least
    1), UnsupportedModel if it can't be read.
    """
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size < least:
                raise too_short
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise ModelNotFound(f"there is no file {path}") from None
    except (OSError, ValueError) as error:
        raise UnsupportedModel(f"{path} can't be read: {error}") from None
