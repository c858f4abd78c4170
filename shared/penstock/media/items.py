"""The prepared media of a prompt, the items that a front end keeps of them, and what a request
brings to the engine core."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

MAX_UUIDS = 16_384
"""Callers' own names that are remembered."""

Key = tuple[str, str]
"""(tenant, name): what one tenant sent tells another nothing, not even by its time."""


@dataclass(frozen=True, slots=True)
class PreparedItem:
    """data: see `penstock.media.prepared`.  digest: its sha256, hex.  shape: as in Answer.  size:
    bytes of the data, where these are in another process; 0: they are here."""

    name: str
    data: bytes
    digest: str
    shape: tuple[int, ...]
    size: int = 0


class MediaCache:
    """capacity: bytes of prepared items; 0: none are kept."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.held = 0
        self.queries = 0
        self.hits = 0
        self._items: OrderedDict[Key, PreparedItem] = OrderedDict()
        self._names: OrderedDict[Key, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._items)

    def find(self, tenant: str, name: str) -> PreparedItem | None:
        """The item of that name, now the most recently used."""
        self.queries += 1
        found = self._items.get((tenant, name))
        if found is not None:
            self.hits += 1
            self._items.move_to_end((tenant, name))
        return found

    def keep(self, tenant: str, item: PreparedItem) -> None:
        """Remembers the item, if it is small enough; others may go for it."""
        key, size = (tenant, item.name), len(item.data)
        if size > self.capacity or key in self._items:
            return
        while self.held + size > self.capacity:
            _, gone = self._items.popitem(last=False)
            self.held -= len(gone.data)
        self._items[key] = item
        self.held += size

    def call(self, tenant: str, uuid: str, name: str) -> None:
        """The tenant calls the item of that name `uuid` from now on."""
        self._names[tenant, uuid] = name
        self._names.move_to_end((tenant, uuid))
        if len(self._names) > MAX_UUIDS:
            self._names.popitem(last=False)

    def called(self, tenant: str, uuid: str) -> PreparedItem | None:
        """What the tenant has sent under that name, if it is kept."""
        name = self._names.get((tenant, uuid))
        return None if name is None else self.find(tenant, name)
