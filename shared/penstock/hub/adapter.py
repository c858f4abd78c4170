"""Adapters of low rank on the hub: from its cache on this machine, else downloaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from penstock.errors import ModelNotFound
from penstock.hub.cache import paths_in, snapshot_of
from penstock.hub.connection import Hub, default_hub
from penstock.hub.gguf_names import group_gguf, matching
from penstock.hub.name import HubName
from penstock.hub.pull import Report, bring
from penstock.hub.repository import look

FOLDER_FILES = ("adapter_config.json", "adapter_model.safetensors")
"""Files of an adapter in PEFT's format."""


def fetch_adapter(name: HubName, report: Report, *, most: int, hub: Hub | None = None) -> Path:
    """Returns the folder or .gguf file of an adapter in the cache, downloaded first if need be.

    most: bytes that each of its files may have.
    Raises ModelNotFound, UnsupportedModel or StartupError, with the reason.
    """
    hub = hub or default_hub()
    snapshot = snapshot_of(hub, name)
    if snapshot is not None:
        try:
            return _path(snapshot, adapter_files(name, paths_in(snapshot)))
        except ModelNotFound:
            pass  # Another choice of the repository is here, or a part.
    repository = look(hub, name)
    files = adapter_files(name, [file.path for file in repository.files])
    return _path(bring(hub, repository, files, report, most=most), files)


def adapter_files(name: HubName, paths: Sequence[str]) -> tuple[str, ...]:
    """Returns those files of a repository that make the adapter. Raises ModelNotFound if it has
    none, or if the name doesn't say which."""
    if name.choice is None and all(each in paths for each in FOLDER_FILES):
        return FOLDER_FILES
    models = [each for each in group_gguf(sorted(paths)) if len(each.files) == 1]
    found = models if name.choice is None else matching(name.choice, models)
    if len(found) == 1:
        return found[0].files
    files = ", ".join(each.files[0] for each in models[:8]) or "none"
    raise ModelNotFound(
        f"{name} names no adapter: {' and '.join(FOLDER_FILES)} are needed, or one .gguf file, "
        f"named behind a colon where there are several; {name.repository} has of the latter: "
        f"{files}"
    )


def _path(snapshot: Path, files: tuple[str, ...]) -> Path:
    return snapshot if files == FOLDER_FILES else snapshot / files[0]
