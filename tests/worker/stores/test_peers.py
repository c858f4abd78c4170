"""Workers that fetch KV blocks of each other: what is there comes as it is, and anything else is a
miss, soon."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from penstock.config.settings import TransportSettings
from penstock.errors import StartupError
from penstock.protocol.between_workers import (
    MAX_ASKED_KEYS,
    MAX_PART_BYTES,
    AskedOfPeer,
    AskKV,
    FromPeer,
    HasKV,
    KVPart,
    SendKV,
)
from penstock.transport.curve_keys import make_folders
from penstock_worker.stores.contents import Asking
from penstock_worker.stores.interface import StoredLayout
from penstock_worker.stores.peers import others, peer
from penstock_worker.stores.peers.counts import TransferCounts
from penstock_worker.stores.peers.keys import KVKeys
from penstock_worker.stores.peers.opening import BlockMemory, KVServer, rank_endpoint
from penstock_worker.stores.peers.others import OtherWorkers
from penstock_worker.stores.peers.peer import KVPeer
from penstock_worker.stores.sealed_store import SealedStore
from penstock_worker.stores.seals import DigestSeal
from tests.worker.stores.test_folder import key

PLAIN = TransportSettings()
PAYLOAD = 2 * MAX_PART_BYTES + 12_345
LAYOUT = StoredLayout("this model", PAYLOAD)


def contents(number: int) -> bytes:
    return (bytes([number % 251, 7, number % 13]) * PAYLOAD)[:PAYLOAD]


def keys(*numbers: int) -> list[bytes]:
    return [key(number) for number in numbers]


class Two:
    """A worker that keeps blocks, and one that asks for them."""

    def __init__(self, endpoint: str, one: TransportSettings, other: TransportSettings) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.keys = KVKeys(self.context, one)
        self.endpoint = endpoint
        self.memory = BlockMemory(LAYOUT, 10 * PAYLOAD)
        self.counts, self.given = TransferCounts(), TransferCounts()
        """Counts of who asks, and of who is asked."""
        self.server = KVServer(self.context, endpoint, self.memory, self.keys, self.given)
        dialled = self.dial(LAYOUT, KVKeys(self.context, other))
        self.asking = Asking()
        self.store = OtherWorkers(LAYOUT, [dialled], self.counts, self.asking)

    def dial(self, layout: StoredLayout, keys: KVKeys) -> KVPeer:
        return KVPeer(self.context, self.endpoint, layout, keys)

    def fill(self, *numbers: int) -> None:
        for number in numbers:
            self.memory.write(key(number), contents(number))

    def close(self) -> None:
        self.store.close()
        self.server.close()
        self.keys.close()
        self.context.term()


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    pair = Two(f"ipc://{tmp_path}/kv.sock", PLAIN, PLAIN)
    yield pair
    pair.close()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def asked(store: OtherWorkers, wanted: list[bytes]) -> int:
    """Once it is connected."""
    until = time.monotonic() + 20
    while not (count := store.leading(wanted)) and time.monotonic() < until:
        time.sleep(0.01)
    return count


def test_blocks_come_as_they_are(two: Two) -> None:
    two.fill(0, 1, 2, 4)
    assert asked(two.store, keys(0, 1, 2, 3, 4)) == 3
    assert [two.store.read(each) for each in keys(0, 1, 2)] == [contents(n) for n in range(3)]
    assert two.store.read(key(3)) is None
    assert two.counts.blocks() == {"fetched": 3, "gone": 0, "served": 0}
    assert two.given.blocks() == {"fetched": 0, "gone": 0, "served": 3}
    assert two.counts.moved_bytes() == {"in": 3 * PAYLOAD, "out": 0}
    assert two.given.moved_bytes() == {"in": 0, "out": 3 * PAYLOAD}
    assert two.counts.faults == two.store.num_damaged == 0


def test_what_made_room_between_question_and_fetch_is_gone(two: Two) -> None:
    two.fill(0, 1)
    assert asked(two.store, keys(0, 1)) == 2
    two.memory.close()
    assert two.store.read(key(0)) is None
    assert two.counts.blocks() == {"fetched": 0, "gone": 1, "served": 0}
    assert two.counts.faults == 0


def test_a_question_waits_a_moment_for_what_is_being_written(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock_worker.stores.peers.opening.HELD_SECONDS", 60.0)
    monkeypatch.setattr("penstock_worker.stores.peers.opening.MOST_HELD_SECONDS", 60.0)
    monkeypatch.setattr(others, "ASK_SECONDS", 60.0)
    two.fill(0, 1)
    found: list[int] = []
    asking = threading.Thread(target=lambda: found.append(asked(two.store, keys(0, 1, 2))))
    asking.start()
    while not two.server._held:
        time.sleep(0.001)
    two.fill(2)
    asking.join(30)
    assert found == [3]


def test_one_that_is_not_to_wait_is_answered_at_once(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock_worker.stores.peers.opening.HELD_SECONDS", 60.0)
    monkeypatch.setattr("penstock_worker.stores.peers.opening.MOST_HELD_SECONDS", 60.0)
    monkeypatch.setattr(others, "ASK_SECONDS", 60.0)
    two.fill(0, 1)
    two.asking.waits = False
    assert asked(two.store, keys(0, 1, 2)) == 2
    assert not two.server._held


def test_what_is_gone_meanwhile_is_missing(two: Two) -> None:
    two.fill(0, 1)
    assert asked(two.store, keys(0, 1)) == 2
    two.fill(*range(10, 19))
    assert len(two.memory) == 10
    assert two.store.read(key(1)) is None
    assert two.store.read(key(0)) == contents(0), "the first is used last of all"


def test_another_layout_has_nothing(two: Two) -> None:
    two.fill(0)
    assert asked(two.store, keys(0)) == 1
    other = OtherWorkers(
        LAYOUT, [two.dial(StoredLayout("another", PAYLOAD), two.keys)], TransferCounts()
    )
    for _ in range(3):
        assert other.leading(keys(0)) == 0
        time.sleep(0.02)
    other.close()


def test_a_flipped_bit_is_found(two: Two) -> None:
    seal = DigestSeal()
    plain = StoredLayout("this model", PAYLOAD - seal.extra_bytes)
    assert seal.over(plain) == LAYOUT
    store = SealedStore(two.store, seal)
    data = contents(0)[: plain.payload_bytes]
    for number in (0, 1):
        stored = bytearray(seal.close(key(number), data))
        stored[-5] ^= number
        two.memory.write(key(number), bytes(stored))
    assert asked(two.store, keys(0, 1)) == 2
    assert store.read(key(0)) == data
    assert store.read(key(1)) is None
    assert store.num_damaged == 1


def test_hostile_questions_get_no_answer_and_harm_nobody(two: Two) -> None:
    two.fill(0)
    encode = msgspec.msgpack.encode
    hostile = [
        b"",
        b"\xc1",
        b"\x93\x01\x02",
        encode({"type": "send_kv"}),
        encode(AskKV(1, "this model", [b"short"])),
        encode(AskKV(1, "this model", keys(0) * (MAX_ASKED_KEYS + 1))),
        encode(SendKV(1, "this model", key(0), -5, 10)),
        encode(SendKV(1, "this model", key(0), 0, PAYLOAD)),
        encode(SendKV(1, "this model", key(0), PAYLOAD - 1, 2)),
        encode(SendKV(1, "this model", key(0), 0, 0)),
    ]
    dealer = two.context.socket(zmq.DEALER)
    dealer.connect(two.endpoint)
    for each in hostile:
        dealer.send(each)
    dealer.send_multipart([b"a", b"b", b"c"])
    dealer.send(encode(AskKV(9, "this model", keys(0))))
    assert dealer.poll(10_000)
    assert msgspec.msgpack.decode(dealer.recv(), type=FromPeer) == HasKV(9, 1)
    assert two.server.num_unfit == len(hostile) + 1
    dealer.close(linger=0)
    assert asked(two.store, keys(0)) == 1


class Rogue:
    """Answers as the test says; never, where that gives nothing."""

    def __init__(self, endpoint: str, answer: Callable[[AskKV | SendKV], bytes | None]) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.num_asked = 0
        self._answer = answer
        self._socket = self.context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(endpoint)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._over.is_set():
            if self._socket.poll(20):
                who, data = self._socket.recv_multipart()
                self.num_asked += 1
                said = self._answer(msgspec.msgpack.decode(data, type=AskedOfPeer))
                if said is not None:
                    self._socket.send_multipart([who, said])
        self._socket.close()

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self.context.term()


def says_too_much(message: AskKV | SendKV) -> bytes:
    return msgspec.msgpack.encode(HasKV(message.number, 9))


def says_nonsense(message: AskKV | SendKV) -> bytes:
    return b"\xc1\xc1"


def swallows(message: AskKV | SendKV) -> None:
    return None


def swallows_parts(message: AskKV | SendKV) -> bytes | None:
    return msgspec.msgpack.encode(HasKV(message.number, 1)) if isinstance(message, AskKV) else None


def sends_too_little(message: AskKV | SendKV) -> bytes:
    has = isinstance(message, AskKV)
    return msgspec.msgpack.encode(
        HasKV(message.number, 1) if has else KVPart(message.number, b"few")
    )


def sends_too_much(message: AskKV | SendKV) -> bytes:
    has = isinstance(message, AskKV)
    data = bytes(MAX_PART_BYTES)
    return msgspec.msgpack.encode(
        HasKV(message.number, 1) if has else KVPart(message.number, data + data)
    )


@pytest.mark.parametrize(
    "answer",
    [says_too_much, says_nonsense, swallows, swallows_parts, sends_too_little, sends_too_much],
)
def test_who_is_silent_or_talks_nonsense_is_left_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer: Callable[[AskKV | SendKV], bytes | None],
) -> None:
    monkeypatch.setattr(others, "ASK_SECONDS", 0.2)
    monkeypatch.setattr(peer, "PART_SECONDS", 0.2)
    endpoint = f"ipc://{tmp_path}/kv.sock"
    rogue = Rogue(endpoint, answer)
    context: zmq.Context[Any] = zmq.Context()
    store = OtherWorkers(
        LAYOUT, [KVPeer(context, endpoint, LAYOUT, KVKeys(context, PLAIN))], TransferCounts()
    )
    until = time.monotonic() + 20
    while not store.num_damaged and time.monotonic() < until:
        if store.leading(keys(0)):
            assert store.read(key(0)) is None
    assert store.num_damaged == 1
    asked = rogue.num_asked
    assert store.leading(keys(0)) == 0
    assert store.read(key(0)) is None
    assert rogue.num_asked == asked, "it is asked in a while"
    store.close()
    context.term()
    rogue.close()


def test_nobody_there_costs_no_time(tmp_path: Path) -> None:
    context: zmq.Context[Any] = zmq.Context()
    endpoint = f"ipc://{tmp_path}/nobody.sock"
    store = OtherWorkers(
        LAYOUT, [KVPeer(context, endpoint, LAYOUT, KVKeys(context, PLAIN))], TransferCounts()
    )
    begun = time.monotonic()
    for _ in range(20):
        assert store.leading(keys(0)) == 0
    assert time.monotonic() - begun < 20 * others.ASK_SECONDS / 2
    assert store.num_damaged == 0
    store.close()
    context.term()


def test_over_tcp_workers_of_one_key_talk_and_others_do_not(tmp_path: Path) -> None:
    make_folders(tmp_path / "a", ["gateway"], ["worker"])
    make_folders(tmp_path / "b", ["gateway"], ["worker"])
    ours = TransportSettings(curve_dir=str(tmp_path / "a" / "worker"))
    pair = Two(f"tcp://127.0.0.1:{_free_port()}", ours, ours)
    try:
        pair.fill(0)
        assert asked(pair.store, keys(0)) == 1
        assert pair.store.read(key(0)) == contents(0)
        theirs = TransportSettings(curve_dir=str(tmp_path / "b" / "worker"))
        plain = TransportSettings()
        for transport in (theirs, plain):
            other = OtherWorkers(
                LAYOUT, [pair.dial(LAYOUT, KVKeys(pair.context, transport))], TransferCounts()
            )
            for _ in range(5):
                assert other.leading(keys(0)) == 0
                time.sleep(0.02)
            other.close()
        assert asked(pair.store, keys(0)) == 1
    finally:
        pair.close()


def test_a_network_in_plain_is_refused(tmp_path: Path) -> None:
    context: zmq.Context[Any] = zmq.Context()
    keys, memory = KVKeys(context, PLAIN), BlockMemory(LAYOUT, PAYLOAD)
    with pytest.raises(StartupError, match="no --curve-dir"):
        KVServer(context, "tcp://0.0.0.0:7777", memory, keys, TransferCounts())
    with pytest.raises(StartupError, match="no --curve-dir"):
        KVPeer(context, "tcp://10.1.2.3:7777", LAYOUT, keys)
    with pytest.raises(StartupError, match="can't be bound"):
        KVServer(context, f"ipc://{tmp_path}/no/such/folder", memory, keys, TransferCounts())
    with pytest.raises(StartupError, match=r"a KV block takes 2,109,497"):
        BlockMemory(LAYOUT, PAYLOAD - 1)
    context.destroy(linger=0)


def test_ranks_have_places_of_their_own() -> None:
    assert rank_endpoint("kv_endpoint", "ipc:///a/kv", 0) == "ipc:///a/kv"
    assert rank_endpoint("kv_endpoint", "ipc:///a/kv", 2) == "ipc:///a/kv.2"
    assert rank_endpoint("kv_peers", "tcp://10.0.0.2:7070", 3) == "tcp://10.0.0.2:7073"
    assert rank_endpoint("kv_peers", "tcp://[fe80::1]:7070", 1) == "tcp://[fe80::1]:7071"
    with pytest.raises(StartupError, match=r"tcp://\*:65534: there is no port for rank 2"):
        rank_endpoint("kv_endpoint", "tcp://*:65534", 2)
