"""The hub's cache on this machine: which models are in it, complete or not.

A repository's folder `models--OWNER--NAME` holds `blobs` (files by their hash), `snapshots/COMMIT`
(links to them by the repository's paths) and `refs` (commits of branches and tags).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from penstock.errors import ModelNotFound, PenstockError, UnsupportedModel
from penstock.formats.weight_files import find_safetensors
from penstock.hub.connection import Hub
from penstock.hub.name import HubName
from penstock.hub.repository import COMMIT
from penstock.hub.selection import SLOW_TOKENIZERS, Selection, select

MAIN = "main"
PREFIX = "models--"
_SHORT = re.compile(r"[0-9a-f]{7,39}")


class Cached(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is wholly in the cache. path: the folder, or the (first) .gguf file."""

    path: Path
    selection: Selection
    snapshot: Path


def repository_folder(hub: Hub, repository: str) -> Path:
    """Where a repository's files are, if there are any."""
    return hub.cache / (PREFIX + repository.replace("/", "--"))


def find_cached(hub: Hub, name: HubName) -> Cached | None:
    """None if the model isn't here, or not all of it: interrupted downloads leave parts."""
    snapshot = snapshot_of(hub, name)
    if snapshot is None:
        return None
    try:
        selection = select(name, paths_in(snapshot))
    except ModelNotFound:
        return None
    return cached_at(snapshot, selection)


def cached_at(snapshot: Path, selection: Selection) -> Cached | None:
    """What the cache has of files that were chosen already; None if a part is missing."""
    if selection.gguf is not None:
        if not selection.gguf.complete:
            return None
        path = snapshot / selection.gguf.files[0]
    elif is_whole_folder(snapshot):
        path = snapshot
    else:
        return None
    return Cached(path=path, selection=selection, snapshot=snapshot)


def snapshot_of(hub: Hub, name: HubName) -> Path | None:
    """The snapshot's folder that a name means."""
    folder = repository_folder(hub, name.repository)
    revision = name.revision or MAIN
    commit = revision if COMMIT.fullmatch(revision) else _commit_of(folder, revision)
    if commit is None:
        return None
    snapshot = folder / "snapshots" / commit
    return snapshot if snapshot.is_dir() else None


def paths_in(snapshot: Path) -> list[str]:
    """Files by their paths in the repository; links that lead nowhere are left out."""
    found = []
    for at, folders, names in os.walk(snapshot):
        folders.sort()
        where = Path(at)
        found += [
            (where / name).relative_to(snapshot).as_posix()
            for name in names
            if (where / name).is_file()
        ]
    return sorted(found)


def refs_of(folder: Path) -> Iterator[tuple[str, str]]:
    """(branch or tag, commit) of a repository's folder."""
    refs = folder / "refs"
    for at, _, names in os.walk(refs):
        for name in names:
            path = Path(at) / name
            commit = _read_ref(path)
            if commit is not None:
                yield path.relative_to(refs).as_posix(), commit


def is_whole_folder(snapshot: Path) -> bool:
    """Whether a folder in the hub's format lacks nothing that its own files name."""
    if not (snapshot / "config.json").exists():
        return False
    try:
        find_safetensors(snapshot)
    except UnsupportedModel:
        return True  # its reader reports what is wrong with it
    except PenstockError:
        return False
    if (snapshot / "tokenizer.json").exists():
        return True
    first = next((name for name in SLOW_TOKENIZERS if any(snapshot.glob(name))), None)
    return first is not None and (first != "vocab.json" or (snapshot / "merges.txt").exists())


def _commit_of(folder: Path, revision: str) -> str | None:
    commit = _read_ref(folder / "refs" / revision)
    if commit is not None:
        return commit
    if not _SHORT.fullmatch(revision):
        return None
    found = [path.name for path in (folder / "snapshots").glob(f"{revision}*")]
    return found[0] if len(found) == 1 else None


def _read_ref(path: Path) -> str | None:
    try:
        with open(path, encoding="ascii") as file:
            commit = file.read(64).strip()
    except (OSError, UnicodeDecodeError):
        return None
    return commit if COMMIT.fullmatch(commit) else None
