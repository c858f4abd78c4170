"""`penstock rm`: a model taken off this machine."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.cli.parser import Parser, examples
from penstock.cli.sizes import decimal
from penstock.errors import InvalidRequest, ModelNotFound, StartupError

if TYPE_CHECKING:
    from penstock.hub.removal import Removal
    from penstock.prepare.folder import PreparedFolder

KEPT = 1
"""The user said no."""


class Found(msgspec.Struct, frozen=True):
    """What goes: of the hub's cache, and prepared folders with the copies of weights made for them.
    size: bytes."""

    removal: Removal | None
    prepared: tuple[PreparedFolder, ...]
    size: int


def add(parser: Parser) -> None:
    """The command's arguments."""
    parser.description = (
        "Removes a model from the hub's cache, with its prepared files. A repository's name"
        " removes all of it; NAME:Q4_K_M that quantisation, NAME@REVISION that version. For a"
        " local file, or a model from a package, only the prepared files are removed. Files that a"
        " process has open stay. Exit codes: 0 removed, 1 not found, in use, or you said no."
    )
    parser.epilog = examples("penstock rm owner/name", "penstock rm owner/name:Q4_K_M --yes")
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--yes", "-y", action="store_true", help="Don't ask.")
    parser.add_argument("--cache-dir", metavar="FOLDER", help="Folder for prepared models.")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; returns one of the exit codes above. Raises ModelNotFound, StartupError,
    InvalidRequest."""
    from penstock.hub.removal import remove
    from penstock.prepare.folder import remove_prepared

    found = find(arguments.model, arguments.cache_dir)
    refuse_used(arguments.model, found)
    for line in _words(found):
        print(line, file=sys.stderr)
    if not arguments.yes and not _agreed(found.size):
        print("penstock: nothing was removed", file=sys.stderr)
        return KEPT
    refuse_used(arguments.model, found)  # the answer may have taken a while
    try:
        for one in found.prepared:
            remove_prepared(one)
        if found.removal is not None:
            remove(found.removal)
    except OSError as error:
        raise StartupError(f"{arguments.model} can't be removed: {error}") from error
    print(f"removed {arguments.model}: {decimal(found.size)}")
    return 0


def find(model: str, cache_dir: str | None) -> Found:
    """Raises ModelNotFound if nothing of it is in a cache."""
    from penstock.hub.connection import default_hub
    from penstock.hub.name import parse
    from penstock.hub.removal import removal_of
    from penstock.prepare.folder import cache_root, prepared_folders

    name = None if Path(model).expanduser().exists() else parse(model)
    removal = None if name is None else removal_of(default_hub(), name)
    gone = set() if removal is None else {os.path.realpath(blob) for blob in removal.blobs}
    path = os.path.realpath(Path(model).expanduser())
    prepared = tuple(
        one
        for one in prepared_folders(cache_root(cache_dir))
        if model in (one.model.name, one.model.source)
        or one.model.source == path
        or any(os.path.realpath(file) in gone for file in one.model.weights.files)
    )
    if removal is None and not prepared:
        raise ModelNotFound(
            f"nothing of {model!r} is in the hub's cache or was prepared (`penstock list`)"
            + _why(model)
        )
    size = 0 if removal is None else removal.size
    size += sum(_size_of(folder) for one in prepared for folder in (one.folder, one.copied))
    return Found(removal, prepared, size)


def refuse_used(model: str, found: Found) -> None:
    """Raises StartupError, naming the processes that use it."""
    from penstock.hub.in_use import users_of

    files = [] if found.removal is None else list(found.removal.blobs)
    for one in found.prepared:
        files += [path for path in (one.copied or one.folder).rglob("*") if path.is_file()]
    users = users_of(files, [one.folder for one in found.prepared])
    if users:
        raise StartupError(
            f"{model} is in use, so it stays: by process "
            + ", ".join(str(user) for user in users[:4])
            + f"; it has {users[0].file} open"
        )


def _words(found: Found) -> list[str]:
    lines = []
    if found.removal is not None:
        what = found.removal.folder or f"{len(found.removal.blobs)} files of {found.removal.name}"
        lines.append(f"  {what}: {decimal(found.removal.size)}")
    lines += [f"  {one.folder}" for one in found.prepared]
    lines += [f"  {one.copied}" for one in found.prepared if one.copied is not None]
    return lines


def _agreed(size: int) -> bool:
    if not sys.stdin.isatty():
        raise InvalidRequest(
            "stdin is not a terminal, so the removal can't be confirmed; --yes removes without "
            "asking"
        )
    return input(f"Remove these, {decimal(size)}? [y/N] ").strip().lower() in ("y", "yes")


def _why(model: str) -> str:
    from penstock.prepare.resolve import find_packaged

    packaged = find_packaged(model)
    if packaged is not None:
        return f"; the package {packaged.package} carries it, and pip removes that"
    return "; files elsewhere are never removed" if Path(model).expanduser().exists() else ""


def _size_of(folder: Path | None) -> int:
    if folder is None:
        return 0
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
