"""A model or an adapter of the hub: from its cache on this machine, else downloaded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from penstock.errors import ModelNotFound, StartupError
from penstock.hub.cache import Cached, find_cached, paths_in, snapshot_of
from penstock.hub.connection import Hub, HubUnreachable, default_hub, is_offline
from penstock.hub.gguf_names import group_gguf, matching
from penstock.hub.name import HubName
from penstock.hub.pull import Report, bring, pull
from penstock.hub.repository import RemoteFile, look
from penstock.hub.transfer import mismatch


def fetch_model(
    name: HubName,
    report: Report,
    fetch: Literal["missing", "newest", "never"],
    hub: Hub | None = None,
) -> Cached:
    """The model in the cache, downloaded first if need be.

    fetch: see penstock.prepare.prepare.  With `newest` the hashes of what is here are checked too;
    if the hub can't be reached, that is all that happens.
    Raises ModelNotFound, UnsupportedModel or StartupError, with the reason.
    """
    hub = hub or default_hub()
    cached = find_cached(hub, name)
    if cached is not None and fetch != "newest":
        return cached
    if fetch == "never":
        raise ModelNotFound(f"{name} is not here (`penstock pull {name}` downloads it)")
    try:
        return pull(hub, name, report, verify=cached is not None)
    except HubUnreachable as error:
        if cached is None:
            raise ModelNotFound(str(error)) from error
        report(
            f"{name} is here; whether there is a newer one can't be seen: "
            + ("HF_HUB_OFFLINE is set" if is_offline() else f"{hub.endpoint} can't be reached")
        )
    _check(name, cached)
    return cached


def _check(name: HubName, cached: Cached) -> None:
    """Blobs are called by their hashes, so the cache itself says what they must hold."""
    for path in cached.selection.files:
        blob = Path(os.path.realpath(cached.snapshot / path))
        wrong = mismatch(blob, RemoteFile(path=path, size=None, etag=blob.name))
        if wrong:
            raise StartupError(
                f"{path} of {name} is damaged in the hub's cache: {wrong}; `penstock pull {name}` "
                "downloads it again when the hub can be reached"
            )


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
    folder = "" if name.choice is None else f"{name.choice.rstrip('/')}/"
    own = tuple(f"{folder}{each}" for each in FOLDER_FILES)
    if all(each in paths for each in own):
        return own
    models = [each for each in group_gguf(sorted(paths)) if len(each.files) == 1]
    found = models if name.choice is None else matching(name.choice, models)
    if len(found) == 1:
        return found[0].files
    files = ", ".join(each.files[0] for each in models[:8]) or "none"
    raise ModelNotFound(
        f"{name} names no adapter: {' and '.join(FOLDER_FILES)} are needed, or one .gguf file; a "
        "folder within the repository, and one of several files, is named behind a colon; "
        f"{name.repository} has of the latter: {files}"
    )


def _path(snapshot: Path, files: tuple[str, ...]) -> Path:
    first = snapshot / files[0]
    return first.parent if first.name in FOLDER_FILES else first
