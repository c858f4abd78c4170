"""`penstock backup`: copies a data folder while the server is running and writing to it."""

from __future__ import annotations

import argparse
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from penstock.cli.columns import decimal
from penstock.cli.parser import Parser, examples
from penstock.errors import InvalidRequest, StartupError

DATABASE = "penstock.db"
FILES = "files"
_LEFT_OUT = ("lock", "scratch", f"{DATABASE}-wal", f"{DATABASE}-shm", f"{DATABASE}-reserve")
"""What a running server makes again: locks, what it is about to store, and parts of the database
that its copy has already."""
ATTEMPTS = 5
"""Looks at the database: a file that a client removes meanwhile is named by an older one."""


def add(parser: Parser) -> None:
    """The command's arguments."""
    parser.description = (
        "Copies the folder of --data-dir, with its SQLite database, as of one moment, while the "
        "server runs. To restore it, serve with --data-dir FOLDER, or with a copy of FOLDER. Exit "
        "codes: 0 copied, 1 failed, 2 wrong usage."
    )
    parser.epilog = examples("penstock backup /var/lib/penstock /backup/penstock-monday")
    parser.add_argument("data_dir", metavar="DATA_DIR", help="What the server's --data-dir says.")
    parser.add_argument("folder", metavar="FOLDER", help="The copy: a folder that isn't there yet.")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """0. Raises InvalidRequest and StartupError."""
    source = Path(arguments.data_dir).expanduser()
    target = Path(arguments.folder).expanduser()
    if not (source / DATABASE).is_file():
        raise InvalidRequest(
            f"{source} holds no {DATABASE}: give the folder of --data-dir (with --database-url, the"
            " database is copied by its own tools)"
        )
    if target.exists():
        raise InvalidRequest(f"{target} is there already; give a folder that isn't")
    if source.resolve() in target.resolve().parents:
        raise InvalidRequest(f"{target} lies in {source}, which is to be copied")
    try:
        count, size = copy(source, target)
    except (OSError, sqlite3.Error) as error:
        raise StartupError(f"{source} can't be copied to {target}: {error}") from error
    print(f"copied {source} to {target}: {count} files, {decimal(size)}")
    return 0


def copy(source: Path, target: Path) -> tuple[int, int]:
    """Copies a data folder. Returns how many files and bytes the copy has. It appears under its
    name once it is whole. Raises OSError, sqlite3.Error and StartupError."""
    part = target.with_name(f".{target.name}.part-{os.urandom(4).hex()}")
    part.mkdir(mode=0o700, parents=True)
    try:
        # Files first: one that is removed before the database is looked at is no loss, and those
        # that come after are copied then.
        _copy_rest(source, part)
        _copy_database(source, part)
        os.rename(part, target)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    found = [path for path in target.rglob("*") if path.is_file()]
    return len(found), sum(path.stat().st_size for path in found)


def _copy_rest(source: Path, part: Path) -> None:
    """All but the database. A file never changes once it has its name."""
    for path in _within(source):
        place = path.relative_to(source)
        if place.parts[0] not in (*_LEFT_OUT, DATABASE) and ".part-" not in path.name:
            _copy_file(path, part / place)


def _copy_database(source: Path, part: Path) -> None:
    """The database, and files that it names and that aren't in the copy yet."""
    for _ in range(ATTEMPTS):
        with (
            closing(sqlite3.connect(source / DATABASE, timeout=30.0)) as live,
            closing(sqlite3.connect(part / DATABASE)) as copied,
        ):
            live.backup(copied)
            # One file, without a write-ahead log next to it.
            copied.execute("PRAGMA journal_mode = DELETE")
            (state,) = copied.execute("PRAGMA quick_check(1)").fetchone()
            if state != "ok":
                raise StartupError(f"the database of {source} is damaged: {state}")
            names = [str(name) for (name,) in copied.execute("SELECT id FROM penstock_files")]
        (part / DATABASE).chmod(0o600)
        # Of a server with a bucket, the folder holds none of them.
        if not (source / FILES).is_dir() or not _missing(source, part, names):
            return
    raise StartupError(f"files of {source} are removed faster than they can be copied")


def _missing(source: Path, part: Path, names: list[str]) -> list[str]:
    """Files that couldn't be copied: they were removed after the database was."""
    for name in names:
        if not (part / FILES / name).exists():
            _copy_file(source / FILES / name, part / FILES / name)
    return [name for name in names if not (part / FILES / name).exists()]


def _within(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders.sort()
        yield from (Path(parent) / name for name in sorted(names))


def _copy_file(path: Path, place: Path) -> None:
    """One that has gone meanwhile is left out."""
    if not path.is_file():
        return
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        shutil.copy2(path, place)
    except FileNotFoundError:
        place.unlink(missing_ok=True)
