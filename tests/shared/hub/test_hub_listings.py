"""What a hub says about a repository and can't be true: a clear error, and nothing on the disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ModelNotFound, PenstockError, UnsupportedModel
from penstock.hub import repository
from testing.hub_server import HubServer
from tests.shared.hub.hostile_hub import (
    CONTENT,
    FILE,
    LISTING,
    cache,
    hub,
    impatient,
    left,
    pull,
    says,
    tricked,
)

__all__ = ["cache", "hub", "impatient"]
pytestmark = pytest.mark.timeout(120)


def listing(**changes: Any) -> bytes:
    files = [{"rfilename": FILE, "size": 3, "blobId": "0" * 40}]
    return json.dumps({"sha": "0" * 40, "siblings": files, **changes}).encode()


def one_file(**changes: Any) -> bytes:
    return listing(siblings=[{"rfilename": FILE, "size": 3, "blobId": "0" * 40, **changes}])


LISTINGS = {
    "a page": (b"<!doctype html><title>Sign in</title>", r"something \(text/html\) that lists no"),
    "nothing": (b"", "lists no files of org/m"),
    "a list": (b"[]", "lists no files of org/m"),
    "another kind of name": (one_file(rfilename=5), r"Expected `str`, got `int`.*rfilename"),
    "another kind of size": (one_file(size="3"), r"Expected `int"),
    "a number beyond all": (one_file(size=10**400), f"bytes for {FILE}"),
    "deep": (b'{"a":' + b"[" * 10_000_000, "lists no files of org/m"),
    "no Unicode": (b'{"sha": "\xff"}', "lists no files of org/m"),
    "no commit": (listing(sha="main"), "names no commit"),
    "a commit that is a path": (listing(sha="../../../../x"), "names no commit"),
    "100,000 names": (
        listing(siblings=[{"rfilename": f"{i}.gguf"} for i in range(100_000)]),
        "lists 100000 files; 20000 at most",
    ),
    "less than nothing": (one_file(size=-1), f"bytes for {FILE}"),
    "more than any disk": (one_file(size=10**15), "are to be downloaded"),
    "a long name": (one_file(rfilename="a" * 300), "which no path may be"),
    "a long path": (one_file(rfilename="a/" * 600 + "b"), "which no path may be"),
    "a NUL": (one_file(rfilename="a\0b"), r"'a\\x00b', which no path may be"),
    "a drive": (one_file(rfilename="C:x.gguf"), "which no path may be"),
    "words for a terminal": (one_file(rfilename="\x1b]0;x.gguf"), r"'\\x1b\]0;x.gguf', which no"),
    "half a character": (
        b'{"sha": "%s", "siblings": [{"rfilename": "\\ud800"}]}' % (b"0" * 40),
        "lists no files of org/m|which no path may be",
    ),
}


@pytest.mark.parametrize("kind", LISTINGS)
def test_a_listing_that_is_none(hub: HubServer, cache: Path, kind: str) -> None:
    content, reason = LISTINGS[kind]
    tricked(hub, LISTING, says(200, content, Content_Type="text/html"))
    with pytest.raises(PenstockError, match=reason) as raised:
        pull(hub, cache)
    assert len(str(raised.value)) < 1000
    assert str(raised.value).isprintable()
    assert left(cache) == 0


@pytest.mark.parametrize("etag", ["..", ".", "a/b", "a.penstock.incomplete", "", "x" * 300])
def test_an_etag_is_no_path(hub: HubServer, cache: Path, etag: str) -> None:
    """Nor another file's part, which would pass for this one."""
    hub.repositories["org/m"].metadata = False
    blobs = cache / "models--org--m" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "a.penstock.incomplete").write_bytes(b"half")
    tricked(hub, FILE, says(200, b"half", ETag=f'"{etag}"'))
    with pytest.raises(UnsupportedModel, match="states no size and hash"):
        pull(hub, cache)


@pytest.mark.parametrize("said", ["-1", "9" * 400, "x", "0x10"])
def test_a_size_that_is_none(hub: HubServer, cache: Path, said: str) -> None:
    hub.repositories["org/m"].metadata = False
    tricked(hub, FILE, says(200, b"", ETag='"abc"', X_Linked_Size=said, X_Linked_ETag='"abc"'))
    with pytest.raises(UnsupportedModel, match="states no size and hash"):
        pull(hub, cache)


def test_asking_about_each_file_has_an_end(
    hub: HubServer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository, "METADATA_SECONDS", -1.0)
    hub.repositories["org/m"].metadata = False
    with pytest.raises(ModelNotFound, match="named those of 0 of 2 files in"):
        pull(hub, cache)


def test_a_mirror_that_says_little(hub: HubServer, cache: Path) -> None:
    """Its listing names files, and nothing else that can be used."""
    known = hub.repositories["org/m"]
    files = [{"rfilename": path, "lfs": False, "blobId": None} for path in known.files]
    said = listing(sha=known.commit, siblings=files, cardData=[], tags={"a": 1})
    tricked(hub, LISTING, says(200, said))
    assert pull(hub, cache).read_bytes() == CONTENT
