"""A store that keeps contents sealed."""

from __future__ import annotations

from collections.abc import Sequence

from penstock_worker.stores.contents import Contents
from penstock_worker.stores.interface import KVStore
from penstock_worker.stores.seals import Seal


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
