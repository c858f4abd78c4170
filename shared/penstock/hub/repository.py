"""What a repository on the hub holds, checked before any of it is used as a path."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.errors import UnsupportedModel
from penstock.hub.connection import Hub, hub_errors
from penstock.hub.name import HubName

COMMIT = re.compile(r"[0-9a-f]{40}")
ETAG = re.compile(r"[\w.-]{1,128}")
MAX_FILES = 20_000
TIMEOUT = 15.0
"""Seconds that the hub may take to answer."""


class RemoteFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a repository.

    path: in the repository.  size: bytes; None: not listed.
    etag: its name among the cache's blobs, and its hash: 64 hex digits of a sha256 (Git LFS), 40 of
    git's blob hash; None: not listed.
    """

    path: str
    size: int | None
    etag: str | None


class Repository(msgspec.Struct, frozen=True, kw_only=True):
    """A repository at one commit. licence: as its card states it; empty if it states none."""

    name: HubName
    commit: str
    files: tuple[RemoteFile, ...]
    licence: str = ""


def look(hub: Hub, name: HubName) -> Repository:
    """Asks the hub. Raises ModelNotFound, or UnsupportedModel for an answer that can't be true."""
    from huggingface_hub import HfApi

    with hub_errors(hub, name):
        info = HfApi(endpoint=hub.endpoint, library_name="penstock").model_info(
            name.repository, revision=name.revision, files_metadata=True, timeout=TIMEOUT
        )
        siblings = info.siblings or ()
    if info.sha is None or not COMMIT.fullmatch(info.sha):
        raise UnsupportedModel(f"{hub.endpoint} names no commit of {name.repository}")
    if len(siblings) > MAX_FILES:
        raise UnsupportedModel(
            f"{name.repository} lists {len(siblings)} files; {MAX_FILES} at most"
        )
    files = tuple(_file(name, sibling) for sibling in siblings)
    return Repository(name=name, commit=info.sha, files=files, licence=_licence(info))


def with_metadata(
    hub: Hub, repository: Repository, files: Sequence[RemoteFile]
) -> list[RemoteFile]:
    """The same files with sizes and hashes; the hub is asked about each that it didn't list
    (mirrors leave them out)."""
    return [
        file if file.size is not None and file.etag is not None else _asked(hub, repository, file)
        for file in files
    ]


def _asked(hub: Hub, repository: Repository, file: RemoteFile) -> RemoteFile:
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    name = repository.name
    url = hf_hub_url(name.repository, file.path, revision=repository.commit, endpoint=hub.endpoint)
    with hub_errors(hub, name):
        known = get_hf_file_metadata(url, timeout=TIMEOUT, library_name="penstock")
    if known.etag is None or not ETAG.fullmatch(known.etag) or known.size is None:
        raise UnsupportedModel(
            f"{hub.endpoint} states no size and hash of {name.repository}/{file.path}"
        )
    return RemoteFile(path=file.path, size=known.size, etag=known.etag)


def _file(name: HubName, sibling: Any) -> RemoteFile:
    path = sibling.rfilename
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\\" in path or "\0" in path:
        raise UnsupportedModel(f"{name.repository} lists a file at {path!r}, which no path may be")
    lfs, size, etag = sibling.lfs, sibling.size, sibling.blob_id
    if lfs is not None:
        size, etag = lfs.size, lfs.sha256
    if not isinstance(etag, str) or not ETAG.fullmatch(etag):
        etag = None
    return RemoteFile(path=path, size=size if isinstance(size, int) else None, etag=etag)


def _licence(info: Any) -> str:
    card = getattr(info, "card_data", None)
    licence = getattr(card, "license", None)
    if licence is None:
        tags = [tag for tag in info.tags or () if tag.startswith("license:")]
        licence = tags[0].partition(":")[2] if tags else ""
    return licence if isinstance(licence, str) else ", ".join(map(str, licence))
