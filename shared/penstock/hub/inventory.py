"""All models in the hub's cache, and how one is taken out of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import msgspec

from penstock.errors import ModelNotFound
from penstock.hub.cache import (
    MAIN,
    PREFIX,
    is_whole_folder,
    paths_in,
    refs_of,
    repository_folder,
    snapshot_of,
)
from penstock.hub.connection import Hub
from penstock.hub.name import HubName
from penstock.hub.repository import COMMIT
from penstock.hub.selection import CARD, group_gguf, matching, select

PARTIAL_SUFFIX = ".incomplete"
"""How names of unfinished downloads end, of this program's and of huggingface_hub's."""


class HubModel(msgspec.Struct, frozen=True, kw_only=True):
    """name: as commands take it.  format: `safetensors`, `GGUF Q4_K_M`.  size: bytes on the disk.
    changed: seconds since 1970, when its newest file came.  complete: else a part of a download.
    files: paths of its files, links to blobs."""

    name: str
    format: str
    size: int
    changed: float
    complete: bool
    files: tuple[Path, ...]


def hub_models(hub: Hub) -> list[HubModel]:
    """Models in the cache, by name. A repository without weights (a tokenizer, say) is left out."""
    found: list[HubModel] = []
    for folder in sorted(hub.cache.glob(f"{PREFIX}*")) if hub.cache.is_dir() else ():
        repository = folder.name.removeprefix(PREFIX).replace("--", "/", 1)
        models = list(_of_repository(folder, repository))
        found += models or _unfinished(folder, repository)
    return found


def _of_repository(folder: Path, repository: str) -> Iterator[HubModel]:
    names: dict[str, str | None] = {}
    for ref, commit in sorted(refs_of(folder), key=lambda item: (item[0] != MAIN, item[0])):
        names.setdefault(commit, None if ref == MAIN else ref)
    snapshots = folder / "snapshots"
    for snapshot in sorted(snapshots.iterdir()) if snapshots.is_dir() else ():
        revision = names.get(snapshot.name, snapshot.name[:12])
        yield from _of_snapshot(HubName(repository, revision), snapshot)


def _of_snapshot(name: HubName, snapshot: Path) -> Iterator[HubModel]:
    paths = paths_in(snapshot)
    for model in group_gguf(paths):
        choice = model.label or model.files[0]
        called = HubName(name.repository, name.revision, choice)
        label = f"GGUF {model.label}".strip()
        yield _model(called, snapshot, model.files, label, complete=model.complete)
    try:
        folder = select(name, [path for path in paths if not path.lower().endswith(".gguf")])
    except ModelNotFound:
        return
    files = tuple(path for path in folder.files if path != CARD)
    yield _model(name, snapshot, files, "safetensors", complete=is_whole_folder(snapshot))


def _model(
    name: HubName, snapshot: Path, paths: tuple[str, ...], label: str, *, complete: bool
) -> HubModel:
    files = tuple(snapshot / path for path in paths)
    facts = [file.stat() for file in files]
    return HubModel(
        name=str(name),
        format=label,
        size=sum(fact.st_size for fact in facts),
        changed=max((fact.st_mtime for fact in facts), default=0.0),
        complete=complete,
        files=files,
    )


def _unfinished(folder: Path, repository: str) -> list[HubModel]:
    parts = [path for path in (folder / "blobs").glob(f"*{PARTIAL_SUFFIX}") if path.is_file()]
    if not parts:
        return []
    facts = [part.stat() for part in parts]
    return [
        HubModel(
            name=repository,
            format="?",
            size=sum(fact.st_size for fact in facts),
            changed=max(fact.st_mtime for fact in facts),
            complete=False,
            files=tuple(parts),
        )
    ]


# Models taken out of the hub's cache: only files that lie in it, and that no other model there
# needs.


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


# Which processes of this machine use a file: have it open or mapped, or name it on their command
# line.
#
# Source: proc(5). Processes of other users can't be looked into, unless root asks.

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
