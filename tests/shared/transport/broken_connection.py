"""A client whose connection breaks while much that came over it is still unread.

Arguments: an endpoint, and how often. Prints how the sessions ended. In a process of its own, as
libzmq may abort it.
"""

from __future__ import annotations

import sys
import time

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from penstock.config.settings import TransportSettings
from penstock.transport import inbound
from penstock.transport.events import Ended, Opened
from penstock.transport.session_client import SessionClient
from penstock.transport.session_server import SessionServer

SETTINGS = TransportSettings(beat_interval=20.0, peer_timeout=60.0)
"""What is sent makes libzmq look at its connections, so no beat is due before all is read."""
UNREAD = 300


def broken(endpoint: str, beats: int) -> str:
    """Why the session ended. beats: that come first; they shift what libzmq counts."""
    decoder = msgspec.msgpack.Decoder(list)
    engine, context = zmq.Context(), zmq.Context()
    server = SessionServer(engine, endpoint, decoder, SETTINGS, b"boot-one")
    client = SessionClient(context, endpoint, decoder, lambda: ["hello"], SETTINGS)
    while not client.opened:
        client.poll(time.monotonic())
        for event in server.poll(time.monotonic()):
            if isinstance(event, Opened):
                server.send(event.session, ["welcome"])
    client.poll(time.monotonic())  # Until there is nothing: from here on libzmq counts parts.
    breaking = client.socket.get_monitor_socket(zmq.EVENT_CONNECT_RETRIED)
    [session] = server.sessions
    for _ in range(beats):
        server._beat(time.monotonic() + SETTINGS.beat_interval)
    for number in range(UNREAD):
        server.send(session, [number])
    client.socket.poll()
    client.poll(time.monotonic())
    server.socket.close(linger=-1)  # No goodbye.
    engine.term()
    recv_monitor_message(breaking)  # Dialled again: the rest has come, and the break is known.
    for number in range(UNREAD + 2):
        late = number > UNREAD
        for event in client.poll(time.monotonic() + late * SETTINGS.beat_interval):
            if isinstance(event, Ended):
                return event.reason
    return ""


def main() -> None:
    inbound.DRAIN_LIMIT = 1  # Messages in a turn, so that the rest stays with libzmq.
    for number in range(int(sys.argv[2])):
        print(f"ended: {broken(f'{sys.argv[1]}{number}', beats=number % 2)}")


if __name__ == "__main__":
    main()
