"""Which processes of this machine use a file: have it open or mapped, or name it on their command
line.

Source: proc(5). Processes of other users can't be looked into, unless root asks.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

import msgspec

PROC = Path("/proc")
MAX_NAME = 60


class User(msgspec.Struct, frozen=True):
    """A process, and one of the files that it uses. name: how it was called."""

    pid: int
    name: str
    file: str

    def __str__(self) -> str:
        return f"{self.pid} ({self.name})"


def users_of(files: Collection[Path], folders: Collection[Path] = ()) -> list[User]:
    """Processes with one of the files open or mapped, or one of the folders on their command line;
    not this process."""
    wanted = {os.path.realpath(file) for file in files}
    folders_named = {str(folder) for folder in folders}
    found = []
    for entry in sorted(PROC.iterdir()):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            file = _used(entry, wanted, folders_named)
            if file:
                found.append(User(int(entry.name), _name(entry), file))
    return found


def _used(process: Path, wanted: set[str], folders_named: set[str]) -> str:
    """One of the files, empty for none."""
    try:
        words = (process / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
        for word in words:
            if word in folders_named or word.partition("=")[2] in folders_named:
                return word.partition("=")[2] or word
        with open(process / "maps", encoding="utf-8", errors="replace") as maps:
            for line in maps:
                path = line[line.find("/") :].rstrip("\n") if "/" in line else ""
                if path in wanted:
                    return path
        for handle in (process / "fd").iterdir():
            if (path := _target(handle)) in wanted:
                return path
    except OSError:
        return ""  # it has ended, or is another user's
    return ""


def _target(handle: Path) -> str:
    try:
        return os.readlink(handle)
    except OSError:
        return ""


def _name(process: Path) -> str:
    try:
        words = (process / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return "?"
    text = " ".join(words).strip()
    return text if len(text) <= MAX_NAME else text[:MAX_NAME] + "…"
