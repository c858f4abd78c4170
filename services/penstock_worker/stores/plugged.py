"""A store that a plug-in brings, from which nothing but what the interface says is taken."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from penstock.config.plugins import KV_STORES, named_plugin, plugin_names
from penstock.errors import StartupError
from penstock.process import logs
from penstock_worker.stores.contents import Contents
from penstock_worker.stores.interface import KVStore, OpenStore, StoredLayout

log = logs.get(__name__)

RETRY_SECONDS = 5.0
"""Seconds until a store is asked again that has raised something."""

FLAG = "--kv-store"

METHODS = ("has", "leading", "read", "write", "close")

AnAnswer = TypeVar("AnAnswer")


def open_plugged(name: str, address: str, layout: StoredLayout) -> KVStore:
    """The store that the setting names. Raises StartupError where there is none, or it can't be
    opened."""
    if not plugin_names(KV_STORES):
        raise StartupError(f"{FLAG} is {name}; no plug-in of the group {KV_STORES} is installed")
    plugin = named_plugin(KV_STORES, name, FLAG, ())
    whose = f"{FLAG} {name}: {plugin.package}"
    if not callable(plugin.value):
        raise StartupError(f"{whose}: what it brings can't be called")
    try:
        store = cast("OpenStore", plugin.value)(layout, address)
    except (Exception, SystemExit) as error:
        raise StartupError(f"{whose}: {type(error).__name__}: {error}") from error
    missing = [each for each in METHODS if not callable(getattr(store, each, None))]
    if missing:
        raise StartupError(f"{whose}: what it opens has no method {missing[0]}")
    return GuardedStore(store, name, layout.payload_bytes)


class GuardedStore:
    """A KVStore that guards one that may raise or return anything. After that has raised, it isn't
    used for RETRY_SECONDS: waiting requests compute."""

    def __init__(self, store: KVStore, name: str, payload_bytes: int) -> None:
        self._store, self._name = store, name
        self._payload_bytes = payload_bytes
        self._not_before = 0.0
        self._lock = threading.Lock()
        self._num_unfit = 0

    @property
    def payload_bytes(self) -> int:
        return self._payload_bytes

    @property
    def num_damaged(self) -> int:
        """Number of answers from the plug-in that can't be a block's contents."""
        return self._num_unfit

    def has(self, key: bytes) -> bool:
        return bool(self._asked(lambda: self._store.has(key), False))

    def leading(self, keys: Sequence[bytes]) -> int:
        found = self._asked(lambda: self._store.leading(keys), 0)
        return min(max(found, 0), len(keys)) if isinstance(found, int) else 0

    def read(self, key: bytes) -> bytes | None:
        payload = self._asked(lambda: self._store.read(key), None)
        if payload is None:
            return None
        if not isinstance(payload, bytes) or len(payload) != self._payload_bytes:
            self._num_unfit += 1
            return None
        return payload

    def write(self, key: bytes, payload: Contents) -> bool:
        contents = bytes(payload)
        return bool(self._asked(lambda: self._store.write(key, contents), False))

    def close(self) -> None:
        try:
            self._store.close()
        except Exception as error:
            self._warn(error)

    def _asked(self, ask: Callable[[], AnAnswer], otherwise: AnAnswer) -> AnAnswer:
        if time.monotonic() < self._not_before:
            return otherwise
        try:
            return ask()
        except Exception as error:
            with self._lock:
                reported = time.monotonic() < self._not_before  # By another thread, of the same.
                self._not_before = time.monotonic() + RETRY_SECONDS
            if not reported:
                self._warn(error)
            return otherwise

    def _warn(self, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}"
        log.warning("the KV store doesn't answer", store=self._name, reason=reason)
