"""What has to travel to a GPU machine, and how large it is: a rehearsal says it, and fails where
something is missing or too much.

Standard library only, as start.py.
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

MOST_BYTES = 60 << 20
"""Most bytes that travel. A lent machine takes 64 MiB; the rest is for what was forgotten."""
LIBRARY = Path("kernels/penstock_kernels/cpu/libpenstock_cpu.so")
"""The CPU kernels. Git ignores them, and without them a visit measures what stands in for them."""
PACKED = "libpenstock_cpu.so.gz"
"""LIBRARY in the carried folder, where it is 3 instead of 7 MB."""


class Missing(Exception):
    """The message says what can't travel, and what to do about it."""


def pack_library(root: Path, carried: Path | None) -> None:
    """LIBRARY as carried/PACKED, whole or not at all. Raises Missing without a folder, and where it
    isn't built."""
    if carried is None:
        raise Missing(f"{LIBRARY} has to be carried: name a folder by --carried")
    if not (root / LIBRARY).is_file():
        raise Missing(
            f"{LIBRARY} has to be carried and isn't built: python setup.py build_ext --inplace"
        )
    carried.mkdir(parents=True, exist_ok=True)
    making = carried / f".{PACKED}"
    with (root / LIBRARY).open("rb") as file, gzip.GzipFile(making, "wb", mtime=0) as packed:
        shutil.copyfileobj(file, packed)
    os.replace(making, carried / PACKED)


def unpack_library(carried: Path | None, target: Path) -> bool:
    """Whether it was carried, and is `target` now. Raises OSError and EOFError for a file that
    can't be read."""
    if carried is None or not (carried / PACKED).is_file():
        return False
    with gzip.open(carried / PACKED) as packed, target.open("wb") as file:
        shutil.copyfileobj(packed, file)
    return True


def luggage(root: Path, folders: Iterable[Path | None]) -> dict[str, int]:
    """Returns the bytes of all that travels: of the checkout's own files under "", and by their
    paths in it of `folders` and what is in them, which git ignores, so that they have to be named.

    Raises Missing where one isn't there or lies outside the checkout, or all is larger than
    MOST_BYTES.
    """
    sizes = {"": sum((root / name).lstat().st_size for name in _own_files(root))}
    for folder in folders:
        if folder is None:
            continue
        path = folder.absolute()
        if not path.is_relative_to(root):
            raise Missing(f"{path} is outside the checkout, so it can't be carried")
        if not path.is_dir():
            raise Missing(f"{path.relative_to(root)} has to be carried, and isn't there")
        sizes[str(path.relative_to(root))] = _bytes(path)
    if (total := sum(sizes.values())) > MOST_BYTES:
        raise Missing(f"{total:,} bytes would travel, of at most {MOST_BYTES:,}: {said(sizes)}")
    return sizes


def said(sizes: dict[str, int]) -> str:
    """Returns one line: `luggage`, for whoever makes the call."""
    carried = ", ".join(f"{name} ({size:,} bytes)" for name, size in sizes.items() if name)
    return f"the checkout's files ({sizes['']:,} bytes); to be named as carried: {carried}"


def _own_files(root: Path) -> list[str]:
    """Files that git tracks, or would if they were added."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return [name for name in done.stdout.split("\0") if name and (root / name).is_file()]


def _bytes(path: Path) -> int:
    return sum(each.lstat().st_size for each in path.rglob("*") if each.is_file())
