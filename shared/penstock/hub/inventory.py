"""All models in the hub's cache, and how one is taken out of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from penstock.errors import ModelNotFound
from penstock.hub.cache import (
    MAIN,
    PREFIX,
    is_whole_folder,
    paths_in,
    refs_of,
)
from penstock.hub.connection import Hub
from penstock.hub.gguf_names import group_gguf
from penstock.hub.name import HubName
from penstock.hub.selection import CARD, select

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
