"""A store of KV blocks in Redis, which engine cores of several machines may share.

    penstock serve --kv-store redis --kv-store-address redis://10.0.0.7:6379/0

Redis bounds what it holds: give it `maxmemory`, and `maxmemory-policy allkeys-lru`.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from penstock_worker.stores.interface import StoredLayout

SECONDS = 1.0
"""That an answer may take. What comes later is computed."""

DAY = 86_400
"""For which a block is kept that nobody asks for."""

MOST_KNOWN = 1_000_000
"""Keys that are known to be there."""


class RedisStore:
    """`--kv-store redis`. Where Redis doesn't answer, methods raise, and aren't called for a
    while."""

    num_damaged = 0

    def __init__(self, layout: StoredLayout, address: str) -> None:
        """`address`: redis://[[USER]:PASSWORD@]HOST:PORT/DB, or rediss:// with TLS. Nothing is
        asked of it yet. Raises ValueError for another one."""
        self.payload_bytes = layout.payload_bytes
        self._prefix = f"penstock:kv:{layout.name}:".encode()
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._lock = threading.Lock()
        self._redis = redis.Redis.from_url(
            address,
            socket_timeout=SECONDS,
            socket_connect_timeout=SECONDS,
            retry=Retry(NoBackoff(), 1),  # A connection may be an old one.
        )

    def has(self, key: bytes) -> bool:
        """Steps wait for it: Redis isn't asked."""
        return key in self._known

    def leading(self, keys: Sequence[bytes]) -> int:
        asked = self._redis.pipeline(transaction=False)
        for key in keys:
            asked.expire(self._prefix + key, DAY)  # 1 where it is there.
        there = asked.execute()
        count = next((at for at, found in enumerate(there) if not found), len(keys))
        for key in keys[:count]:
            self._knows(key, True)
        for key in keys[count:]:
            self._knows(key, False)
        return count

    def read(self, key: bytes) -> bytes | None:
        payload: bytes | None = self._redis.get(self._prefix + key)
        self._knows(key, payload is not None)
        return payload

    def write(self, key: bytes, payload: bytes) -> bool:
        self._redis.set(self._prefix + key, payload, ex=DAY)
        self._knows(key, True)
        return True

    def close(self) -> None:
        self._redis.close()

    def _knows(self, key: bytes, there: bool) -> None:
        with self._lock:
            self._known.pop(key, None)
            if there:
                self._known[key] = None
            if len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)
