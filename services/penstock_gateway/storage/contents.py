"""Contents of files: each under its id, in a place that belongs to one database."""

from __future__ import annotations

import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from penstock.errors import StartupError

_ID = re.compile(r"file-[0-9a-f]{32}")
_PART = ".part"
ABANDONED_SECONDS = 24 * 3600.0
"""Seconds after which a file that no record names counts as left over from a process that died."""
CHUNK = 1 << 18
"""Bytes that are read at once."""


def checked_id(file_id: str) -> str:
    """Raises ValueError for what is no id of ours."""
    if not _ID.fullmatch(file_id):
        raise ValueError(f"not a file id: {file_id[:100]!r}")
    return file_id


def is_id(name: str) -> bool:
    """Whether a file in the place is a client's."""
    return _ID.fullmatch(name) is not None


class Contents(ABC):
    """Names in it are ids that we made: what a client calls its file is a record's business.
    Methods wait for disks and networks, and raise OSError: they are for threads."""

    @abstractmethod
    def writer(self, file_id: str) -> ContentsWriter:
        """A file that is there once it is kept, and not before."""

    @abstractmethod
    def open(self, file_id: str) -> BinaryIO:
        """All of it, to be read by lines. Raises FileNotFoundError."""

    @abstractmethod
    def read(self, file_id: str) -> Iterator[bytes]:
        """Yields a file's bytes in pieces. Raises FileNotFoundError."""

    @abstractmethod
    def remove(self, file_id: str) -> None:
        """Removes a file's contents. It is no error if there are none."""

    @abstractmethod
    def ids(self) -> Iterator[str]:
        """Ids of all files there."""

    @abstractmethod
    def remove_abandoned(self, known: Iterable[str]) -> None:
        """Removes what no record leads to, for a day."""

    def write(self, file_id: str, parts: Iterable[bytes]) -> int:
        """Writes a whole file, in place of the one there may be; its length in bytes."""
        writer = self.writer(file_id)
        try:
            for part in parts:
                writer.write(part)
            writer.keep()
        finally:
            writer.close()
        return writer.size


class FolderContents(Contents):
    """A folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        make_folder(folder)

    def path(self, file_id: str) -> Path:
        """Raises ValueError for what is no id of ours."""
        return self._folder / checked_id(file_id)

    def writer(self, file_id: str) -> ContentsWriter:
        return ContentsWriter(self.path(file_id))

    def open(self, file_id: str) -> BinaryIO:
        return self.path(file_id).open("rb")

    def read(self, file_id: str) -> Iterator[bytes]:
        with self.open(file_id) as file:
            while part := file.read(CHUNK):
                yield part

    def remove(self, file_id: str) -> None:
        self.path(file_id).unlink(missing_ok=True)

    def ids(self) -> Iterator[str]:
        for path in self._folder.iterdir():
            if is_id(path.name):
                yield path.name

    def remove_abandoned(self, known: Iterable[str]) -> None:
        sweep_folder(self._folder, known)


def make_folder(folder: Path) -> None:
    """Makes a folder for this user alone. Raises StartupError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StartupError(f"--data-dir: {folder} can't be created: {error.strerror}") from None


def sweep_folder(folder: Path, known: Iterable[str]) -> None:
    """Removes files that aren't among `known`, and haven't been touched for a day."""
    leads, limit = set(known), time.time() - ABANDONED_SECONDS
    for path in folder.iterdir():
        with suppress(OSError):
            if path.name not in leads and path.stat().st_mtime < limit:
                path.unlink(missing_ok=True)


class ContentsWriter:
    """Writes beside the file's place, and moves it there when all of it is on the disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.with_name(f"{path.name}{_PART}-{os.urandom(8).hex()}")
        self._file = os.fdopen(
            os.open(self._part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb"
        )
        self.size = 0
        """Bytes so far."""

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self.size += len(data)

    def keep(self) -> None:
        """The file is there from now on."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._settle(self._part)

    def _settle(self, part: Path) -> None:
        """Brings what is written whole to its place."""
        os.replace(part, self._path)

    def close(self) -> None:
        """What wasn't kept is gone."""
        try:
            # What it still holds is written now, or fails again where the disk is full.
            with suppress(OSError):
                self._file.close()
        finally:
            self._part.unlink(missing_ok=True)
