"""What a repository on the hub holds, checked before any of it is used as a path."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from penstock.errors import UnsupportedModel
from penstock.hub.connection import Hub, HubUnreachable, hub_errors
from penstock.hub.http import HubAnswer, asked
from penstock.hub.name import HubName

HASH = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")
SIZE = re.compile(r"[0-9]{1,15}")
COMMIT = re.compile(r"[0-9a-f]{40}")
ETAG = re.compile(r"[0-9A-Za-z_-]{1,128}")
"""No dots: a blob's name is no folder's, nor that of another one's part."""
MAX_FILES = 20_000
MAX_LISTING = 32 << 20
"""Bytes of the answer that lists a repository's files: a file takes some 350."""
MAX_SIZE = 1 << 50
"""Bytes of a file."""
LONGEST_NAME = 200
"""Bytes of a file's or folder's name: file systems allow 255, and ours add some."""
LONGEST_PATH = 1000
METADATA_SECONDS = 600.0
"""Seconds for all files that the hub has to be asked about one by one."""


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


class _LFS(msgspec.Struct):
    sha256: str | None = None
    size: int | None = None


class _Sibling(msgspec.Struct):
    rfilename: str
    size: int | None = None
    blobId: str | None = None
    lfs: _LFS | bool | None = None
    """Some mirrors say false."""


class _Listing(msgspec.Struct):
    """The part of the hub's answer about a repository that is used. siblings: its files."""

    sha: str | None = None
    siblings: list[_Sibling] | None = None
    cardData: Any = None
    tags: Any = None


def look(hub: Hub, name: HubName) -> Repository:
    """Asks the hub. Raises ModelNotFound, or UnsupportedModel for an answer that can't be true."""
    url = f"{hub.endpoint}/api/models/{name.repository}"
    if name.revision is not None:
        url += f"/revision/{quote(name.revision, safe='')}"
    with hub_errors(hub, name), asked("GET", url, params={"blobs": "true"}) as answer:
        answer.check_status()
        content = answer.read(MAX_LISTING)
        kind = answer.header("Content-Type")
    listing = _listing(hub, name, content, kind)
    if listing.sha is None or not COMMIT.fullmatch(listing.sha):
        raise UnsupportedModel(f"{hub.endpoint} names no commit of {name.repository}")
    siblings = listing.siblings or ()
    if len(siblings) > MAX_FILES:
        raise UnsupportedModel(
            f"{name.repository} lists {len(siblings)} files; {MAX_FILES} at most"
        )
    files = tuple(_file(name, sibling) for sibling in siblings)
    return Repository(name=name, commit=listing.sha, files=files, licence=_licence(listing))


def _listing(hub: Hub, name: HubName, content: bytes, kind: str) -> _Listing:
    try:
        return msgspec.json.decode(content, type=_Listing)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        kind = "".join(c for c in kind if c.isprintable())[:80] or "of no stated kind"
        raise HubUnreachable(
            f"{hub.endpoint} answers with something ({kind}) that lists no files of "
            f"{name.repository}: {error}; is it a hub, and does nothing on the way answer for it?"
        ) from None


def file_url(hub: Hub, repository: Repository, file: RemoteFile) -> str:
    """The URL of a file's contents at the repository's commit."""
    from huggingface_hub import hf_hub_url

    return hf_hub_url(
        repository.name.repository,
        file.path,
        revision=repository.commit,
        endpoint=hub.endpoint,
    )


def with_metadata(
    hub: Hub, repository: Repository, files: Sequence[RemoteFile]
) -> list[RemoteFile]:
    """`files` with sizes and hashes; the hub is asked about each that it didn't list (mirrors leave
    them out)."""
    found: list[RemoteFile] = []
    begun = time.monotonic()
    for file in files:
        if file.size is None or file.etag is None:
            if time.monotonic() - begun > METADATA_SECONDS:
                raise HubUnreachable(
                    f"{hub.endpoint} lists no sizes and hashes of {repository.name.repository}, "
                    f"and has named those of {len(found)} of {len(files)} files in "
                    f"{METADATA_SECONDS:g} s"
                )
            file = _asked(hub, repository, file)
        found.append(file)
    return found


def _asked(hub: Hub, repository: Repository, file: RemoteFile) -> RemoteFile:
    name, url = repository.name, file_url(hub, repository, file)
    with hub_errors(hub, name), asked("HEAD", url, enough=_is_linked) as answer:
        answer.check_status()
        etag = plain_etag(answer.header("X-Linked-ETag") or answer.header("ETag"))
        size = answer.header("X-Linked-Size") or answer.header("Content-Length")
    if not ETAG.fullmatch(etag) or not SIZE.fullmatch(size):
        raise UnsupportedModel(
            f"{hub.endpoint} states no size and hash of {name.repository}/{file.path}"
        )
    return RemoteFile(path=file.path, size=int(size), etag=etag)


def _is_linked(answer: HubAnswer) -> bool:
    """Whether the redirect to a file's storage states the file's hash and size itself."""
    return bool(answer.header("X-Linked-Size") and answer.header("X-Linked-ETag"))


def plain_etag(header: str) -> str:
    """`W/"abc"` and `"abc"` without the quotes."""
    return header.strip().removeprefix("W/").strip('"')


def is_hash(etag: str) -> bool:
    """Whether it is a sha256 or a hash of git, with which contents can be compared."""
    return HASH.fullmatch(etag) is not None


def _file(name: HubName, sibling: _Sibling) -> RemoteFile:
    path = sibling.rfilename
    parts = path.split("/")
    if (
        any(part in ("", ".", "..") or len(part.encode()) > LONGEST_NAME for part in parts)
        or len(path) > LONGEST_PATH
        or "\\" in path
        or re.match("[A-Za-z]:", path)
        or not path.isprintable()
    ):
        shown = path if len(path) <= 100 else f"{path[:100]}..."
        raise UnsupportedModel(f"{name.repository} lists a file at {shown!r}, which no path may be")
    size, etag = sibling.size, sibling.blobId
    if isinstance(sibling.lfs, _LFS):
        size, etag = sibling.lfs.size, sibling.lfs.sha256
    if size is not None and not 0 <= size <= MAX_SIZE:
        shown = str(size)[:20] if size < 10**20 else "10^20 and more"
        raise UnsupportedModel(f"{name.repository} lists {shown} bytes for {path}")
    # The hub lists hashes, and others nothing: any other word would be no check.
    return RemoteFile(path=path, size=size, etag=etag if etag and is_hash(etag) else None)


def _licence(info: _Listing) -> str:
    licence = info.cardData.get("license") if isinstance(info.cardData, dict) else None
    if licence is None:
        listed = info.tags if isinstance(info.tags, list) else []
        tags = [str(tag) for tag in listed if str(tag).startswith("license:")]
        licence = tags[0].partition(":")[2] if tags else ""
    shown = ", ".join(map(str, licence)) if isinstance(licence, list) else str(licence)
    return "".join(c for c in shown if c.isprintable())[:200]
