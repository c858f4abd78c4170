"""What was computed here lately, in memory, for others to fetch."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence

from penstock.errors import StartupError
from penstock_worker.stores.contents import Contents
from penstock_worker.stores.interface import StoredLayout


class BlockMemory:
    """A KVStore. What was not used for longest leaves it."""

    num_damaged = 0
    """Whoever reads compares digests."""

    def __init__(self, layout: StoredLayout, limit_bytes: int) -> None:
        """Raises StartupError where no block fits."""
        self._layout = layout
        self._most = limit_bytes // layout.payload_bytes
        if not self._most:
            raise StartupError(
                f"kv_transfer_gib lets {limit_bytes:,} bytes be kept for other engine cores; a KV"
                f" block takes {layout.payload_bytes:,}"
            )
        self._lock = threading.Lock()
        self._blocks: OrderedDict[bytes, bytes] = OrderedDict()
        self.written_at = 0.0
        """When a block came last, by time.monotonic."""

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def layout(self) -> StoredLayout:
        return self._layout

    @property
    def payload_bytes(self) -> int:
        return self._layout.payload_bytes

    def has(self, key: bytes) -> bool:
        return key in self._blocks

    def leading(self, keys: Sequence[bytes]) -> int:
        with self._lock:
            found = next((n for n, key in enumerate(keys) if key not in self._blocks), len(keys))
            # The first one leaves last: without it the others are of no use.
            for key in reversed(keys[:found]):
                self._blocks.move_to_end(key)
        return found

    def read(self, key: bytes) -> bytes | None:
        return self._blocks.get(key)

    def write(self, key: bytes, payload: Contents) -> bool:
        if len(payload) != self.payload_bytes:
            return False
        with self._lock:
            while len(self._blocks) >= self._most and key not in self._blocks:
                self._blocks.popitem(last=False)
            self._blocks[key] = bytes(payload)
            self.written_at = time.monotonic()
        return True

    def close(self) -> None:
        with self._lock:
            self._blocks.clear()
