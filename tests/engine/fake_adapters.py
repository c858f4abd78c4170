"""What a worker has of adapters: nothing is loaded, and every rule of the protocol is checked."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.protocol.common import AdapterFile
from penstock.protocol.from_worker import AdapterFailed, AdapterReady
from penstock.protocol.worker_resources import DropAdapter, LoadAdapter
from tests.engine.fake_media import Mark


def adapter(number: int) -> AdapterFile:
    """One of many, all different."""
    digest = hashlib.sha256(f"adapter {number}".encode()).hexdigest()
    return AdapterFile(digest, f"/adapters/{number}")


def adapted(known: list[Mark], digest: str) -> list[Mark]:
    """Tokens that an adapter sees otherwise, from the first one on."""
    return [(f"{digest} {known[0]}", 0), *known[1:]] if digest else known


@dataclass
class FakeAdapters:
    """capacity: that may be loaded at a time. bad: digests of those that don't fit the model."""

    capacity: int
    bad: set[str] = field(default_factory=set)
    loading: dict[str, str] = field(default_factory=dict)
    """Paths, by digest."""
    loaded: set[str] = field(default_factory=set)
    num_loads: int = 0

    def hears(self, message: LoadAdapter | DropAdapter) -> None:
        """Nothing is loaded until `answer` says so."""
        known = self.loading.keys() | self.loaded
        if isinstance(message, LoadAdapter):
            assert message.adapter not in known, "loaded twice"
            assert len(known) < self.capacity, "more than there are places for"
            self.loading[message.adapter] = message.path
            self.num_loads += 1
        else:
            assert message.adapter in self.loaded, "dropped, and never loaded"
            self.loaded.discard(message.adapter)

    def answer(self, digest: str) -> AdapterReady | AdapterFailed:
        """It is done with one of those that it loads."""
        path = self.loading.pop(digest)
        # One that failed is dropped as others are.
        self.loaded.add(digest)
        if digest in self.bad:
            return AdapterFailed(digest, f"it is bad, and lies elsewhere than {len(path)}")
        return AdapterReady(digest)

    def check_used(self, digests: Iterable[str]) -> None:
        """Checks the adapters of sequences that a plan admits."""
        assert {digest for digest in digests if digest} <= self.loaded, "used, and not loaded"
