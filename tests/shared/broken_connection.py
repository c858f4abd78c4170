"""A link whose connection breaks while much that came over it is still unread.

Arguments: an endpoint, and how often. Prints how the sessions ended. In a process of its own, as
libzmq may abort it.
"""

from __future__ import annotations

import sys
import time

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from penstock.config import TransportSettings
from penstock.transport import inbound
from penstock.transport.events import Ended, Opened
from penstock.transport.hub import Hub
from penstock.transport.link import Link

SETTINGS = TransportSettings(beat_interval=20.0, peer_timeout=60.0)
"""What is sent makes libzmq look at its connections, so no beat is due before all is read."""
UNREAD = 300


def broken(endpoint: str, beats: int) -> str:
    """Why the session ended. beats: that come first; they shift what libzmq counts."""
    decoder = msgspec.msgpack.Decoder(list)
    engine, context = zmq.Context(), zmq.Context()
    hub = Hub(engine, endpoint, decoder, SETTINGS, b"boot-one")
    link = Link(context, endpoint, decoder, lambda: ["hello"], SETTINGS)
    while not link.opened:
        link.poll(time.monotonic())
        for event in hub.poll(time.monotonic()):
            if isinstance(event, Opened):
                hub.send(event.session, ["welcome"])
    link.poll(time.monotonic())  # Until there is nothing: from here on libzmq counts parts.
    breaking = link.socket.get_monitor_socket(zmq.EVENT_CONNECT_RETRIED)
    [session] = hub.sessions
    for _ in range(beats):
        hub._beat(time.monotonic() + SETTINGS.beat_interval)
    for number in range(UNREAD):
        hub.send(session, [number])
    link.socket.poll()
    link.poll(time.monotonic())
    hub.socket.close(linger=-1)  # No goodbye.
    engine.term()
    recv_monitor_message(breaking)  # Dialled again: the rest has come, and the break is known.
    for number in range(UNREAD + 2):
        late = number > UNREAD
        for event in link.poll(time.monotonic() + late * SETTINGS.beat_interval):
            if isinstance(event, Ended):
                return event.reason
    return ""


def main() -> None:
    inbound.DRAIN_LIMIT = 1  # Messages in a turn, so that the rest stays with libzmq.
    for number in range(int(sys.argv[2])):
        print(f"ended: {broken(f'{sys.argv[1]}{number}', beats=number % 2)}")


if __name__ == "__main__":
    main()
