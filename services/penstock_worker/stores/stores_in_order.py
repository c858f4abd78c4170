"""Several stores as one."""

from __future__ import annotations

from collections.abc import Sequence

from penstock_worker.stores.contents import Contents
from penstock_worker.stores.interface import KVStore

MAX_TURNS = 16
"""How often, in one look-up, a store goes on where another one has nothing more, at most."""


class StoresInOrder:
    """A KVStore made of others, the fastest first. Each keeps everything; a block is read from the
    first one that has it."""

    def __init__(self, stores: Sequence[KVStore]) -> None:
        """stores: at least one, all for the same layout."""
        self._stores = tuple(stores)

    @property
    def payload_bytes(self) -> int:
        return self._stores[0].payload_bytes

    @property
    def num_damaged(self) -> int:
        return sum(store.num_damaged for store in self._stores)

    def has(self, key: bytes) -> bool:
        """Whether none needs it any more."""
        return all(store.has(key) for store in self._stores)

    def leading(self, keys: Sequence[bytes]) -> int:
        found = 0
        for _ in range(MAX_TURNS):
            more = self._next(keys[found:])
            found += more
            if not more or found == len(keys):
                break
        return found

    def read(self, key: bytes) -> bytes | None:
        for store in self._stores:
            payload = store.read(key)
            if payload is not None:
                return payload
        return None

    def write(self, key: bytes, payload: Contents) -> bool:
        """Whether any keeps it."""
        kept = [store.has(key) or store.write(key, payload) for store in self._stores]
        return any(kept)

    def close(self) -> None:
        for store in self._stores:
            store.close()

    def _next(self, keys: Sequence[bytes]) -> int:
        """How many the first store has that has any."""
        return next(filter(None, (store.leading(keys) for store in self._stores)), 0)
