"""What is sent, as the other side gets it."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.protocol.from_frontend import FromFrontend
from penstock.protocol.from_worker import FromWorker
from penstock.protocol.to_frontend import ToFrontend
from penstock.protocol.to_worker import ToWorker

encode = msgspec.msgpack.Encoder().encode
_DECODERS = {
    union: msgspec.msgpack.Decoder(union)
    for union in (FromFrontend, FromWorker, ToFrontend, ToWorker)
}


def over_the_wire(message: Any, union: Any) -> Any:
    """What the other side gets: encoded, and decoded with the receiver's decoder."""
    return _DECODERS[union].decode(encode(message))
