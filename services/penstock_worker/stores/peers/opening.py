"""Opens the stores that stand for other engine cores' workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import zmq

from penstock.config.settings import TransportSettings
from penstock.protocol.to_worker import Setup
from penstock_worker.parallel.place import RankPlace
from penstock_worker.stores.contents import Asking
from penstock_worker.stores.interface import KVStore, StoredLayout
from penstock_worker.stores.peers.counts import TransferCounts
from penstock_worker.stores.peers.keys import KVKeys
from penstock_worker.stores.peers.memory import BlockMemory
from penstock_worker.stores.peers.others import OtherWorkers
from penstock_worker.stores.peers.peer import KVPeer
from penstock_worker.stores.peers.places import rank_endpoint
from penstock_worker.stores.peers.server import KVServer


class Closing:
    """A KVStore that is another one, and has more to close."""

    def __init__(self, store: KVStore, closing: Sequence[Callable[[], Any]]) -> None:
        self._store = store
        self._closing = closing
        self.has, self.leading = store.has, store.leading
        self.read, self.write = store.read, store.write

    @property
    def payload_bytes(self) -> int:
        return self._store.payload_bytes

    @property
    def num_damaged(self) -> int:
        return self._store.num_damaged

    def close(self) -> None:
        self._store.close()
        for close in self._closing:
            close()
        self._closing = ()


def open_transfer(
    setup: Setup,
    layout: StoredLayout,
    place: RankPlace,
    transport: TransportSettings,
    counts: TransferCounts,
    asking: Asking,
) -> Iterator[KVStore]:
    """What is kept for others, then what others have. `place`: of this rank, which talks to those
    that have the same place in theirs; `asking`: how others are asked. Raises StartupError."""
    if setup.kv_endpoint:
        endpoint = rank_endpoint("kv_endpoint", setup.kv_endpoint, place.rank)
        memory = BlockMemory(layout, setup.kv_transfer_bytes // place.ranks)
        yield _kept_for_others(memory, endpoint, transport, counts)
    if setup.kv_peers:
        peers = [rank_endpoint("kv_peers", peer, place.rank) for peer in setup.kv_peers]
        yield _of_others(peers, layout, transport, counts, asking)


def _kept_for_others(
    memory: BlockMemory, endpoint: str, transport: TransportSettings, counts: TransferCounts
) -> KVStore:
    with ExitStack() as failed:
        context, keys = _context(transport, failed)
        server = KVServer(context, endpoint, memory, keys, counts)
        failed.pop_all()
    return Closing(memory, (server.close, keys.close, context.term))


def _of_others(
    endpoints: list[str],
    layout: StoredLayout,
    transport: TransportSettings,
    counts: TransferCounts,
    asking: Asking,
) -> KVStore:
    with ExitStack() as failed:
        context, keys = _context(transport, failed)
        peers = [KVPeer(context, endpoint, layout, keys) for endpoint in endpoints]
        failed.pop_all()
    return Closing(OtherWorkers(layout, peers, counts, asking), (keys.close, context.term))


def _context(transport: TransportSettings, failed: ExitStack) -> tuple[zmq.Context[Any], KVKeys]:
    """Returns a context and its keys, with what is to be done where nothing comes of it."""
    context: zmq.Context[Any] = zmq.Context()
    failed.callback(context.destroy, linger=0)
    keys = KVKeys(context, transport)
    failed.callback(keys.close)
    return context, keys
