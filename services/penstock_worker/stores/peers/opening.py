"""Opens the stores that stand for other engine cores' workers."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import msgspec
import zmq

from penstock.config.settings import TransportSettings
from penstock.errors import StartupError
from penstock.process import logs
from penstock.protocol.between_workers import (
    KEY_BYTES,
    MAX_ASKED_KEYS,
    MAX_PART_BYTES,
    AskedOfPeer,
    AskKV,
    HasKV,
    KVPart,
    SendKV,
)
from penstock.protocol.to_worker import Setup
from penstock_worker.parallel.place import RankPlace
from penstock_worker.stores.contents import Asking, Contents
from penstock_worker.stores.interface import KVStore, StoredLayout
from penstock_worker.stores.peers.counts import TransferCounts
from penstock_worker.stores.peers.keys import KVKeys
from penstock_worker.stores.peers.others import OtherWorkers
from penstock_worker.stores.peers.peer import KVPeer


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


MAX_PORT = 65_535


def rank_endpoint(setting: str, endpoint: str, rank: int) -> str:
    """Returns a rank's endpoint, made of its engine core's, which is that of rank 0. Others have
    the ports after it, or its path with their number at the end. Raises StartupError."""
    if not rank:
        return endpoint
    if not endpoint.startswith("tcp://"):
        return f"{endpoint}.{rank}"
    host, _, port = endpoint.rpartition(":")
    if int(port) + rank > MAX_PORT:
        raise StartupError(f"{setting} is {endpoint}: there is no port for rank {rank} behind it")
    return f"{host}:{int(port) + rank}"


log = logs.get(__name__)

MAX_QUESTION_BYTES = 2 * 2**20

MAX_UNREAD_PARTS = 16
"""Parts queued towards one worker; what is beyond that is not sent."""

HELD_SECONDS = 0.02
"""Seconds for which a question with missing keys waits: they may be about to be written, as
requests often come here right after another worker has computed them."""

MOST_HELD_SECONDS = 0.8
"""Seconds for which it waits while blocks are being written."""

MAX_HELD = 64

TURN_MS = 5

_decoder = msgspec.msgpack.Decoder(AskedOfPeer)
_encoder = msgspec.msgpack.Encoder()


class KVServer:
    """Binds `endpoint`. What can't be read, or asks for more than is allowed, gets no answer."""

    def __init__(
        self,
        context: zmq.Context[Any],
        endpoint: str,
        memory: BlockMemory,
        keys: KVKeys,
        counts: TransferCounts,
    ) -> None:
        """Raises StartupError where the endpoint can't be bound."""
        self.num_unfit = 0
        """Messages that no sound worker sends."""
        self._counts = counts
        self._memory = memory
        self._held: deque[tuple[float, bytes, AskKV]] = deque()
        """Held questions: since when, of whom, what."""
        self._socket = context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, MAX_UNREAD_PARTS)
        self._socket.setsockopt(zmq.RCVHWM, MAX_UNREAD_PARTS)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_QUESTION_BYTES)
        if endpoint.startswith("tcp://["):
            self._socket.setsockopt(zmq.IPV6, 1)
        keys.listen(self._socket, endpoint)
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            self._socket.close()
            raise StartupError(f"kv_endpoint {endpoint} can't be bound: {error}") from None
        stop = f"inproc://kv-server-{id(self)}"
        self._stopped, self._stop = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
        self._stopped.bind(stop)
        self._stop.connect(stop)
        self._thread = threading.Thread(target=self._serve, name="kv-to-peers", daemon=True)
        self._thread.start()

    def close(self) -> None:
        if self._thread.is_alive():
            self._stop.send(b"")
            self._thread.join()
        self._stop.close(linger=0)

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._stopped, zmq.POLLIN)
        while True:
            ready = dict(poller.poll(TURN_MS if self._held else None))
            if self._stopped in ready:
                break
            if self._socket in ready:
                self._take(self._socket.recv_multipart())
            self._answer_held()
        self._socket.close()
        self._stopped.close(linger=0)

    def _take(self, parts: list[bytes]) -> None:
        try:
            if len(parts) != 2:
                raise ValueError(f"a question of {len(parts)} parts")
            self._answer(parts[0], _decoder.decode(parts[1]))
        except (msgspec.DecodeError, ValueError) as error:
            self.num_unfit += 1
            if self.num_unfit == 1:
                log.warning("a request for KV can't be answered", reason=str(error))

    def _answer(self, peer: bytes, asked: AskKV | SendKV) -> None:
        """Raises ValueError for one that no sound worker asks."""
        if isinstance(asked, AskKV):
            if len(asked.keys) > MAX_ASKED_KEYS or any(len(k) != KEY_BYTES for k in asked.keys):
                raise ValueError(f"{len(asked.keys)} keys, too many or malformed")
            self._count(peer, asked)
            return
        total = self._memory.payload_bytes
        end = asked.offset + asked.size
        if not (0 <= asked.offset < end <= total and asked.size <= MAX_PART_BYTES):
            raise ValueError(f"bytes {asked.offset} to {end} of {total}")
        contents = None if self._is_other(asked.layout) else self._memory.read(asked.key)
        data = None if contents is None else contents[asked.offset : end]
        if data is not None:
            # Before it is sent: once a peer has the block, it is counted.
            self._counts.served_bytes += len(data)
            self._counts.served += end == total
        self._send(peer, KVPart(asked.number, data))

    def _count(self, peer: bytes, asked: AskKV) -> None:
        found = 0 if self._is_other(asked.layout) else self._memory.leading(asked.keys)
        missing = found < len(asked.keys) and not self._is_other(asked.layout)
        if missing and asked.waits and len(self._held) < MAX_HELD:
            self._held.append((time.monotonic(), peer, asked))
        else:
            self._send(peer, HasKV(asked.number, found))

    def _answer_held(self) -> None:
        """Answers the held questions that have waited long enough, or for nothing more."""
        now = time.monotonic()
        quiet = now - self._memory.written_at
        for _ in range(len(self._held)):
            since, peer, asked = self._held.popleft()
            found = self._memory.leading(asked.keys)
            waits = now < since + (HELD_SECONDS if quiet > HELD_SECONDS else MOST_HELD_SECONDS)
            if found < len(asked.keys) and waits:
                self._held.append((since, peer, asked))
            else:
                self._send(peer, HasKV(asked.number, found))

    def _is_other(self, layout: str) -> bool:
        return layout != self._memory.layout.name

    def _send(self, peer: bytes, answer: HasKV | KVPart) -> None:
        """Sends an answer. A peer that is gone, or doesn't read, gets nothing."""
        try:
            self._socket.send_multipart([peer, _encoder.encode(answer)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            log.debug("an answer of KV could not be sent", reason=str(error))


class BlockMemory:
    """A KVStore. What was not used for longest leaves it."""

    num_damaged = 0
    """Always 0: the reader compares digests."""

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
