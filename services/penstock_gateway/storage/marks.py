"""Which database a storage place belongs to. Files without a record in the database are removed, so
a place must never be cleaned up with another database's records."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import StartupError
from penstock_gateway.storage.bucket_contents import ObjectBucket

if TYPE_CHECKING:
    pass


MARK = "database-id"
"""The file beside the contents that names their database."""
LONGEST_ID = 100
"""Bytes of it that are read."""


class FolderMark:
    """The mark in `folder`, as the database `database_id` finds it."""

    flag = "--data-dir"

    def __init__(self, folder: Path, database_id: str) -> None:
        self._path = folder / MARK
        self._id = database_id

    @property
    def where(self) -> str:
        """The place, for people."""
        return str(self._path.parent)

    def holds(self) -> bool:
        """Whether the folder is this database's now: another one may be mounted there meanwhile,
        or two databases may have marked a new one at once. Raises OSError."""
        return self._read() == self._id

    def claim(self, contents: Iterable[str], known: Callable[[], Iterable[str]]) -> None:
        """Marks the folder, unless it is marked.

        contents: ids that have a file there.  known: all ids of this database; it is asked only
        where there are files without a mark, as versions left them that made none.  Raises
        StartupError where the folder is another database's.
        """
        try:
            found = self._read()
            if found is None:
                self._check_unmarked(set(contents), known)
                self._write()
                found = self._read()
        except OSError as error:
            raise StartupError(
                f"{self.flag}: {self.where}/{MARK} can't be used: {error.strerror}"
            ) from None
        if found != self._id:
            raise StartupError(
                f"{self.flag}: {self.where} holds the files of the database {found}, but "
                "--database-url is "
                f"the database {self._id}; allowed: a folder of that database, or an empty folder. "
                f"If {found} no longer exists, its files are useless: empty the folder"
            )

    def _check_unmarked(self, contents: set[str], known: Callable[[], Iterable[str]]) -> None:
        if contents and contents.isdisjoint(known()):
            raise StartupError(
                f"{self.flag}: {self.where} holds {len(contents)} files, and the database of "
                "--database-url "
                "knows none of them; allowed: a folder of that database, or an empty folder. If "
                f"they are its own, write {self._id} into "
                f"{self.where}/{MARK}"
            )

    def _read(self) -> str | None:
        """The text of the mark; None if there is no mark."""
        try:
            with self._path.open("rb") as file:
                return file.read(LONGEST_ID).decode("ascii", "replace").strip()
        except FileNotFoundError:
            return None

    def _write(self) -> None:
        """Whole, or not at all: other processes of the system start meanwhile."""
        part = self._path.with_name(f"{MARK}.part-{os.urandom(8).hex()}")
        try:
            with os.fdopen(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as out:
                out.write(f"{self._id}\n".encode())
                out.flush()
                os.fsync(out.fileno())
            os.replace(part, self._path)
        finally:
            part.unlink(missing_ok=True)


class BucketMark(FolderMark):
    """The mark in a bucket, as the database `database_id` finds it."""

    flag = "--files-url"

    def __init__(self, bucket: ObjectBucket, database_id: str) -> None:
        self._bucket = bucket
        self._id = database_id

    @property
    def where(self) -> str:
        return self._bucket.url.rstrip("/")

    def _read(self) -> str | None:
        try:
            text = b"".join(self._bucket.read(MARK))
        except FileNotFoundError:
            return None
        return text[:LONGEST_ID].decode("ascii", "replace").strip()

    def _write(self) -> None:
        self._bucket.put_bytes(MARK, f"{self._id}\n".encode())
