"""Models taken out of the hub's cache: only files that lie in it, and that no other model there
needs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import msgspec

from penstock.errors import ModelNotFound
from penstock.hub.cache import (
    refs_of,
    repository_folder,
    snapshot_of,
)
from penstock.hub.connection import Hub
from penstock.hub.gguf_names import group_gguf, matching
from penstock.hub.name import HubName
from penstock.hub.repository import COMMIT


class Removal(msgspec.Struct, frozen=True, kw_only=True):
    """What would go. pointers: files of snapshots.  blobs: what they lead to, where nothing else
    does. folder: the whole repository's, where nothing of it would be left; None otherwise."""

    name: HubName
    pointers: tuple[Path, ...]
    blobs: tuple[Path, ...]
    folder: Path | None

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(blob.stat().st_size for blob in self.blobs)


def removal_of(hub: Hub, name: HubName) -> Removal | None:
    """None if nothing of that name is in the cache. Raises ModelNotFound for a choice that isn't.

    A repository's name means all of it; a revision, that snapshot; a choice, that quantisation.
    """
    folder = repository_folder(hub, name.repository)
    if not folder.is_dir() or not folder.resolve().is_relative_to(hub.cache.resolve()):
        return None
    if name.revision is None and name.choice is None:
        return Removal(name=name, pointers=(), blobs=tuple(_blobs_in(folder)), folder=folder)
    snapshot = snapshot_of(hub, name)
    if snapshot is None:
        return None
    pointers = _files(snapshot)
    if name.choice is not None:
        pointers = _of_choice(name, name.choice, snapshot, pointers)
    others = set(_files(folder / "snapshots")) - set(pointers)
    if not any(_is_weight(other) for other in others):
        return Removal(name=name, pointers=(), blobs=tuple(_blobs_in(folder)), folder=folder)
    needed = {os.path.realpath(other) for other in others}
    targets = {os.path.realpath(pointer) for pointer in pointers} - needed
    inside = folder.resolve()
    blobs = [Path(target) for target in sorted(targets) if Path(target).is_relative_to(inside)]
    return Removal(name=name, pointers=tuple(pointers), blobs=tuple(blobs), folder=None)


def remove(removal: Removal) -> None:
    """Raises OSError."""
    if removal.folder is not None:
        shutil.rmtree(removal.folder)
        return
    for path in (*removal.pointers, *removal.blobs):
        path.unlink(missing_ok=True)
    for folder in sorted({path.parent for path in removal.pointers}, reverse=True):
        _drop_empty(folder)


def _of_choice(name: HubName, choice: str, snapshot: Path, files: list[Path]) -> list[Path]:
    models = group_gguf(file.relative_to(snapshot).as_posix() for file in files)
    found = matching(choice, models)
    if not found:
        there = ", ".join(model.label or model.files[0] for model in models) or "no GGUF file"
        raise ModelNotFound(f"the cache has no {name}; of {name.repository} it has {there}")
    return [snapshot / path for model in found for path in model.files]


def _drop_empty(folder: Path) -> None:
    """The folder, and those above it up to the snapshot's, with the branches that mean it."""
    while not COMMIT.fullmatch(folder.name):
        if any(folder.iterdir()):
            return
        folder.rmdir()
        folder = folder.parent
    if any(folder.iterdir()):
        return
    folder.rmdir()
    repository = folder.parent.parent
    for ref, commit in list(refs_of(repository)):
        if commit == folder.name:
            (repository / "refs" / ref).unlink(missing_ok=True)


def _is_weight(path: Path) -> bool:
    return path.suffix.lower() in (".gguf", ".safetensors") and path.exists()


def _files(folder: Path) -> list[Path]:
    """Files and links, also such as lead nowhere."""
    return sorted(Path(at) / name for at, _, names in os.walk(folder) for name in names)


def _blobs_in(folder: Path) -> Iterable[Path]:
    inside = folder.resolve()
    real = {Path(os.path.realpath(path)) for path in _files(folder)}
    return sorted(path for path in real if path.is_relative_to(inside) and path.is_file())
