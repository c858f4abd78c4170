"""What keeps the contents of KV blocks outside the worker's memory.

The folder on disk is one KVStore; a plug-in may bring another one (docs/guides/kv-on-disk.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock_worker.stores.contents import Contents


@dataclass(frozen=True, slots=True)
class StoredLayout:
    """name: a digest, in hex, of all that contents depend on in addition to their key: model,
    numerics, version, and how a block lies in memory.  payload_bytes: of a block's contents."""

    name: str
    payload_bytes: int


class KVStore(Protocol):
    """Contents of blocks by their keys, which say what was computed, and by whom it may be used.

    A store is opened for one StoredLayout: what is kept for another one is never found. What can't
    be read, is damaged, or comes too late, is missing, and is computed: nothing here raises for it.
    All but `has` may wait for whatever holds the contents, and are called from threads that no step
    waits for; any method may be called while another one runs.
    Everything in a store is bounded: what was not used for longest leaves it.
    """

    @property
    def payload_bytes(self) -> int:
        """Bytes of a block's contents, the same for all."""

    @property
    def num_damaged(self) -> int:
        """Contents that were found to be so since the store was opened."""

    def has(self, key: bytes) -> bool:
        """Returns whether the contents are known to be there, which saves writing them again.
        Doesn't wait."""

    def leading(self, keys: Sequence[bytes]) -> int:
        """How many of the keys, from the first one on, are there. They count as used now."""

    def read(self, key: bytes) -> bytes | None:
        """The contents, after their digest was compared; None where there are none that are
        whole."""

    def write(self, key: bytes, payload: Contents) -> bool:
        """Keeps the contents; whether they are there now. A plug-in's store gets bytes."""

    def close(self) -> None:
        """The store isn't used any more. Idempotent."""


OpenStore = Callable[[StoredLayout, str], KVStore]
"""What a plug-in brings under an entry point of the group `penstock.kv_stores`: called with the
layout and the setting `kv_store_address`. May raise whatever says why the store can't be used; one
that doesn't answer now is none of that. Of what it opens, `payload_bytes` and `num_damaged` aren't
asked, contents have a digest already, and a method that raises has found or kept nothing."""
