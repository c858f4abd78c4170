"""A worker of another engine core, from which KV blocks are fetched."""

from __future__ import annotations

import os
import time
from typing import Any

import msgspec
import zmq

from penstock.process import logs
from penstock.protocol.between_workers import (
    MAX_PART_BYTES,
    AskKV,
    FromPeer,
    HasKV,
    KVPart,
    SendKV,
)
from penstock_worker.stores.interface import StoredLayout
from penstock_worker.stores.peers.keys import KVKeys

log = logs.get(__name__)

PART_SECONDS = 1.0
"""Seconds until a part has to come."""

RETRY_SECONDS = 5.0
"""Seconds for which a worker isn't asked that was silent, or said what makes no sense."""

HEAD_BYTES = 256
"""Bytes that an answer may have in addition to the part."""

PARTS_AHEAD = 4
"""The parts that are asked for and have not come, at most."""

_decoder = msgspec.msgpack.Decoder(FromPeer)
_encoder = msgspec.msgpack.Encoder()


class PeerFault(Exception):
    """Raised if another worker was silent, or said what no sound worker says."""


class KVPeer:
    """Dials the worker at `endpoint`, and again by itself. For one thread at a time."""

    def __init__(
        self, context: zmq.Context[Any], endpoint: str, layout: StoredLayout, keys: KVKeys
    ) -> None:
        """Raises StartupError where the endpoint needs keys that aren't there."""
        self.endpoint = endpoint
        self._context, self._layout, self._keys = context, layout, keys
        self._number = 0
        self._asked = 0
        """Keys of the open question."""
        self._not_before = 0.0
        self.socket = self._dial()

    def ask(self, keys: list[bytes], *, waits: bool = True) -> bool:
        """Asks how many it has; whether it was there to be asked. waits: see AskKV."""
        if time.monotonic() < self._not_before:
            return False
        self._number += 1
        self._asked = len(keys)
        return self._send(AskKV(self._number, self._layout.name, keys, waits))

    def counted(self) -> int | None:
        """Returns the worker's answer, once its socket can be read; None if that was no answer to
        the latest question. Raises PeerFault."""
        message = self._receive()
        if not isinstance(message, HasKV) or message.number != self._number:
            return None
        if not 0 <= message.count <= self._asked:
            raise PeerFault(f"it has {message.count} of {self._asked} blocks")
        return message.count

    def pull(self, key: bytes) -> bytes | None:
        """A block's contents; None where it has them no more. Raises PeerFault."""
        total = self._layout.payload_bytes
        offsets = range(0, total, MAX_PART_BYTES)
        contents = bytearray(total)
        first, asked, come = self._number + 1, 0, 0
        while come < len(offsets):
            while asked < len(offsets) and asked - come < PARTS_AHEAD:
                self._ask_part(key, offsets[asked])
                asked += 1
            data = self._part(first + come)
            if data is None:
                return None
            begin = offsets[come]
            if len(data) != min(MAX_PART_BYTES, total - begin):
                raise PeerFault(f"{len(data)} bytes were received instead of a part")
            contents[begin : begin + len(data)] = data
            come += 1
        return bytes(contents)

    def put_off(self, reason: str) -> None:
        """Has the worker not asked for a while; answers to what was asked are never read."""
        log.warning("another worker's KV is not used", endpoint=self.endpoint, reason=reason)
        self._not_before = time.monotonic() + RETRY_SECONDS
        self.socket.close()
        self.socket = self._dial()

    def close(self) -> None:
        self.socket.close()

    def _dial(self) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.RECONNECT_IVL, 50)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        socket.setsockopt(zmq.SNDHWM, 2 * PARTS_AHEAD)
        socket.setsockopt(zmq.RCVHWM, 2 * PARTS_AHEAD)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_PART_BYTES + HEAD_BYTES)
        socket.setsockopt(zmq.ROUTING_ID, b"\x01" + os.urandom(15))
        if self.endpoint.startswith("tcp://["):
            socket.setsockopt(zmq.IPV6, 1)
        self._keys.dial(socket, self.endpoint)
        socket.connect(self.endpoint)
        return socket

    def _ask_part(self, key: bytes, offset: int) -> None:
        self._number += 1
        size = min(MAX_PART_BYTES, self._layout.payload_bytes - offset)
        if not self._send(SendKV(self._number, self._layout.name, key, offset, size)):
            raise PeerFault("it is gone")

    def _part(self, number: int) -> bytes | None:
        """What answers that question. Raises PeerFault."""
        until = time.monotonic() + PART_SECONDS
        while (left := until - time.monotonic()) > 0:
            if not self.socket.poll(round(1000 * left) + 1):
                continue
            message = self._receive()
            if isinstance(message, KVPart) and message.number == number:
                return message.data
            if message.number >= number:
                raise PeerFault("its answer matches no question")
        raise PeerFault(f"nothing came for {PART_SECONDS:g} s")

    def _send(self, message: AskKV | SendKV) -> bool:
        try:
            self.socket.send(_encoder.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return False  # Nothing answers.
        return True

    def _receive(self) -> HasKV | KVPart:
        """Raises PeerFault."""
        parts = self.socket.recv_multipart()
        if len(parts) != 1:
            raise PeerFault(f"an answer of {len(parts)} parts")
        try:
            return _decoder.decode(parts[0])
        except msgspec.DecodeError as error:
            raise PeerFault(f"its answer can't be read: {error}") from None
