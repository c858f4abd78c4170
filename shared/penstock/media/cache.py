"""Prepared pictures that a front end keeps, least recently used first to go."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

MAX_UUIDS = 16_384
"""Callers' own names that are remembered."""

Key = tuple[str, str]
"""(tenant, name): what one tenant sent tells another nothing, not even by its time."""


@dataclass(frozen=True, slots=True)
class PreparedPicture:
    """data: see `penstock.media.prepared`.  digest: its sha256, hex.  size: (height, width) of the
    picture."""

    name: str
    data: bytes
    digest: str
    size: tuple[int, int]


class MediaCache:
    """capacity: bytes of prepared pictures; 0: none are kept."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.held = 0
        self.queries = 0
        self.hits = 0
        self._pictures: OrderedDict[Key, PreparedPicture] = OrderedDict()
        self._names: OrderedDict[Key, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pictures)

    def find(self, tenant: str, name: str) -> PreparedPicture | None:
        """The picture of that name, now the most recently used."""
        self.queries += 1
        found = self._pictures.get((tenant, name))
        if found is not None:
            self.hits += 1
            self._pictures.move_to_end((tenant, name))
        return found

    def keep(self, tenant: str, picture: PreparedPicture) -> None:
        """Remembers the picture, if it is small enough; others may go for it."""
        key, size = (tenant, picture.name), len(picture.data)
        if size > self.capacity or key in self._pictures:
            return
        while self.held + size > self.capacity:
            _, gone = self._pictures.popitem(last=False)
            self.held -= len(gone.data)
        self._pictures[key] = picture
        self.held += size

    def call(self, tenant: str, uuid: str, name: str) -> None:
        """The tenant calls the picture of that name `uuid` from now on."""
        self._names[tenant, uuid] = name
        self._names.move_to_end((tenant, uuid))
        if len(self._names) > MAX_UUIDS:
            self._names.popitem(last=False)

    def called(self, tenant: str, uuid: str) -> PreparedPicture | None:
        """What the tenant has sent under that name, if it is kept."""
        name = self._names.get((tenant, uuid))
        return None if name is None else self.find(tenant, name)
