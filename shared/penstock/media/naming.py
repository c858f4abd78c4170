"""Names of items, by their content."""

from __future__ import annotations

import hashlib

import msgspec

from penstock.media.sources import MediaSource
from penstock.model.media_facts import AnyPreparation

VERSION = 1
"""Version of the code that prepares: raise it whenever the same bytes give other pixels or
frames."""


def item_name(
    preparation: AnyPreparation, source: MediaSource, data: bytes, parts: tuple[int, ...]
) -> str:
    """sha256 (hex) over the item's kind, its preparation and its bytes, each with its length, so
    that no two items are framed alike. parts: bytes of each file, where it has several."""
    shape = () if source.raw is None else source.raw[1]
    kind = f"{source.kind} {' x '.join(map(str, shape))}".rstrip()
    if parts:
        kind += f" in parts of {parts}"
    total = hashlib.sha256()
    for part in (kind.encode(), preparation_digest(preparation).encode(), data):
        total.update(len(part).to_bytes(8, "little"))
        total.update(part)
    return total.hexdigest()


def sha256_hex(data: bytes) -> str:
    """SHA-256 of bytes alone: the digest by which a worker checks what it is given."""
    return hashlib.sha256(data).hexdigest()


def preparation_digest(preparation: AnyPreparation) -> str:
    """sha256 (hex) of what is done to an item."""
    return hashlib.sha256(b"%d\0" % VERSION + msgspec.json.encode(preparation)).hexdigest()
