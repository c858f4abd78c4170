"""Contents on their way to a store and back: with a checksum, or encrypted."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from penstock_worker.stores.contents import CHECKSUM_BYTES, Contents, checksum
from penstock_worker.stores.interface import KVStore, StoredLayout


class Seal(Protocol):
    """What is stored in place of a block's contents, and under which name."""

    @property
    def extra_bytes(self) -> int:
        """The bytes by which what is stored is longer than the contents."""

    def over(self, layout: StoredLayout) -> StoredLayout:
        """What the store below is opened for."""

    def name(self, key: bytes) -> bytes:
        """Returns the name under which the store knows the key, 32 bytes."""

    def close(self, key: bytes, payload: Contents) -> bytes:
        """What is stored for the contents."""

    def open(self, key: bytes, stored: bytes) -> bytes | None:
        """The contents; None if what was stored is damaged, or another key's."""


class DigestSeal:
    """The contents after a checksum of theirs and of their key."""

    extra_bytes = CHECKSUM_BYTES

    def over(self, layout: StoredLayout) -> StoredLayout:
        return replace(layout, payload_bytes=layout.payload_bytes + self.extra_bytes)

    def name(self, key: bytes) -> bytes:
        return key

    def close(self, key: bytes, payload: Contents) -> bytes:
        return b"".join((checksum(key, payload), payload))

    def open(self, key: bytes, stored: bytes) -> bytes | None:
        made, payload = stored[:CHECKSUM_BYTES], stored[CHECKSUM_BYTES:]
        return payload if hmac.compare_digest(made, checksum(key, payload)) else None


class SealedStore:
    """A KVStore in front of another one, whose payloads are longer by what the seal adds."""

    def __init__(self, store: KVStore, seal: Seal) -> None:
        self._store, self._seal = store, seal
        self._num_broken = 0

    @property
    def payload_bytes(self) -> int:
        return self._store.payload_bytes - self._seal.extra_bytes

    @property
    def num_damaged(self) -> int:
        return self._num_broken + self._store.num_damaged

    def has(self, key: bytes) -> bool:
        return self._store.has(self._seal.name(key))

    def leading(self, keys: Sequence[bytes]) -> int:
        return self._store.leading([self._seal.name(key) for key in keys])

    def read(self, key: bytes) -> bytes | None:
        stored = self._store.read(self._seal.name(key))
        if stored is None:
            return None
        payload = self._seal.open(key, stored)
        self._num_broken += payload is None
        return payload

    def write(self, key: bytes, payload: Contents) -> bool:
        return self._store.write(self._seal.name(key), self._seal.close(key, payload))

    def close(self) -> None:
        self._store.close()
