"""Worker -> worker of another engine core, of the same model.

What is asked and answered has a number, which is the asker's. Each message is one frame: a client
that loses its connection must never be left with half of one.
"""

from __future__ import annotations

import msgspec

MAX_ASKED_KEYS = 32_768
"""Most keys of one AskKV."""

MAX_PART_BYTES = 2**20
"""Most bytes of a block's contents in one message."""

KEY_BYTES = 32


class AskKV(msgspec.Struct, frozen=True, tag="ask_kv"):
    """How many of these blocks are there, from the first one on? Answered by HasKV."""

    number: int
    layout: str
    """Names everything that contents depend on in addition to their keys."""
    keys: list[bytes]
    waits: bool = True
    """Whether the answer may wait a moment for blocks that are about to be written."""


class SendKV(msgspec.Struct, frozen=True, tag="send_kv"):
    """Asks for a part of a block's contents. Answered by KVPart."""

    number: int
    layout: str
    key: bytes
    offset: int
    size: int
    """Bytes, at most MAX_PART_BYTES, and not beyond the contents' end."""


class HasKV(msgspec.Struct, frozen=True, tag="has_kv"):
    """Answers AskKV."""

    number: int
    count: int
    """Number of leading keys whose contents are there; 0 also if the peer's layout differs."""


class KVPart(msgspec.Struct, frozen=True, tag="kv_part"):
    """Answers SendKV."""

    number: int
    data: bytes | None = None
    """The bytes; None if there are no such contents."""


AskedOfPeer = AskKV | SendKV
FromPeer = HasKV | KVPart
