"""A dialling peer in a process of its own, for tests that kill and freeze it.

Arguments: endpoint, beat interval, peer timeout, mode. It echoes every message with its session
count; mode `flood` sends without end instead, and `kept` has a heartbeat look after its client.
"""

from __future__ import annotations

import sys
import time

import msgspec
import zmq

from penstock.config.settings import TransportSettings
from penstock.transport.events import Ended, Opened, Received
from penstock.transport.heartbeat import PROCESS
from penstock.transport.session_client import SessionClient


def main() -> None:
    endpoint, beat, timeout, mode = sys.argv[1:5]
    settings = TransportSettings(beat_interval=float(beat), peer_timeout=float(timeout))
    context = zmq.Context()
    opened = 0
    client = SessionClient(
        context, endpoint, msgspec.msgpack.Decoder(list), lambda: ["hello"], settings
    )
    if mode == "kept":
        PROCESS.join(client)
    stop_at = time.monotonic() + 600
    while (now := time.monotonic()) < stop_at:
        for event in client.poll(now):
            if isinstance(event, Opened):
                opened += 1
                print(f"opened {opened}", flush=True)
            elif isinstance(event, Received):
                client.send(["echo", opened, event.message])
            elif isinstance(event, Ended):
                print(f"ended {event.reason}", flush=True)
        if mode == "flood":
            for _ in range(500):
                client.send(["flood", "x" * 1000])
        elif client.socket is not None:
            with client.lock:
                client.socket.poll(int(1000 * client.wait_hint(now)))
        else:
            time.sleep(client.wait_hint(now))


if __name__ == "__main__":
    main()
