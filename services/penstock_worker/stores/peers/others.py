"""What the workers of other engine cores have."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence

import zmq

from penstock.protocol.between_workers import MAX_ASKED_KEYS
from penstock_worker.stores.contents import Asking, Contents
from penstock_worker.stores.interface import StoredLayout
from penstock_worker.stores.peers.counts import TransferCounts
from penstock_worker.stores.peers.peer import KVPeer, PeerFault

ASK_SECONDS = 1.0
"""Seconds for which answers are waited for. Who hasn't answered by then isn't asked for a while."""

MAX_KNOWN = 65_536
"""Most blocks for which the peers that have them are remembered."""


class OtherWorkers:
    """A KVStore that nothing is written to: each worker keeps its own."""

    def __init__(
        self,
        layout: StoredLayout,
        peers: Sequence[KVPeer],
        counts: TransferCounts,
        asking: Asking | None = None,
    ) -> None:
        """asking: who looks blocks up may change it."""
        self._asking = asking or Asking()
        self._layout = layout
        self._counts = counts
        self._peers = tuple(peers)
        self._lock = threading.Lock()
        self._who: OrderedDict[bytes, KVPeer] = OrderedDict()

    @property
    def num_damaged(self) -> int:
        """Answers that were missing, or made no sense."""
        return self._counts.faults

    @property
    def payload_bytes(self) -> int:
        return self._layout.payload_bytes

    def has(self, key: bytes) -> bool:
        """Returns True: nothing needs to be written here."""
        return True

    def leading(self, keys: Sequence[bytes]) -> int:
        asked = list(keys[:MAX_ASKED_KEYS])
        with self._lock:
            counts = self._ask(asked) if asked else {}
            if not counts:
                return 0
            peer = max(counts, key=counts.__getitem__)
            for key in asked[: counts[peer]]:
                self._who[key] = peer
                self._who.move_to_end(key)
            while len(self._who) > MAX_KNOWN:
                self._who.popitem(last=False)
            return counts[peer]

    def read(self, key: bytes) -> bytes | None:
        with self._lock:
            peer = self._who.pop(key, None)
            if peer is None:
                return None
            try:
                contents = peer.pull(key)
            except PeerFault as error:
                self._put_off(peer, error)
                return None
            if contents is None:
                self._counts.gone += 1
            else:
                self._counts.fetched += 1
                self._counts.fetched_bytes += len(contents)
            return contents

    def write(self, key: bytes, payload: Contents) -> bool:
        return False

    def close(self) -> None:
        with self._lock:
            for peer in self._peers:
                peer.close()
            self._peers = ()
            self._who.clear()

    def _ask(self, keys: list[bytes]) -> dict[KVPeer, int]:
        """How many each has, of those who answer in time."""
        until = time.monotonic() + ASK_SECONDS
        waits = self._asking.waits
        asked = {peer.socket: peer for peer in self._peers if peer.ask(keys, waits=waits)}
        poller = zmq.Poller()
        for socket in asked:
            poller.register(socket, zmq.POLLIN)
        counts: dict[KVPeer, int] = {}
        while asked and (left := until - time.monotonic()) > 0:
            for socket, _ in poller.poll(round(1000 * left) + 1):
                peer = asked[socket]
                try:
                    count = peer.counted()
                except PeerFault as error:
                    count = 0
                    self._put_off(peer, error)
                if count is not None:
                    counts[peer] = count
                    poller.unregister(socket)
                    del asked[socket]
        for peer in asked.values():
            self._put_off(peer, PeerFault(f"it did not answer in {ASK_SECONDS:g} s"))
        return counts

    def _put_off(self, peer: KVPeer, error: PeerFault) -> None:
        self._counts.faults += 1
        for key in [key for key, who in self._who.items() if who is peer]:
            del self._who[key]
        peer.put_off(str(error))
