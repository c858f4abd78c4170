"""A model of the hub: from its cache on this machine, else downloaded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from penstock.errors import ModelNotFound, StartupError
from penstock.hub.cache import Cached, find_cached
from penstock.hub.connection import Hub, HubUnreachable, default_hub, is_offline
from penstock.hub.name import HubName
from penstock.hub.pull import Report, pull
from penstock.hub.repository import RemoteFile
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
