"""What a rank tells the engine core of a step."""

from __future__ import annotations

import hashlib
import struct

from penstock.protocol.from_worker import Result, SlotResult
from penstock_worker.parallel.place import RankPlace

_DEFERRED, _FAILED = -1, -2
"""In place of a token id."""

BITS = 63
"""Of a hash: every reader of MessagePack has signed integers of 64 bits."""


def report(result: Result, place: RankPlace, seconds: float) -> Result:
    """result: all that this rank knows of the step."""
    if place.ranks == 1:
        return Result(result.step, result.slots, seconds)
    slots = result.slots if place.lead else []
    return Result(result.step, slots, seconds, sampled_hash(result.slots))


def sampled_hash(slots: list[SlotResult]) -> int:
    """Of which slot got which token, or none for which reason; 0 where nobody was to get one."""
    pairs = [(each.slot, _outcome(each)) for each in slots]
    said = b"".join(struct.pack("<qq", slot, token) for slot, token in pairs if token is not None)
    if not said:
        return 0
    digest = hashlib.blake2b(said, digest_size=8).digest()
    return int.from_bytes(digest, "little") >> (64 - BITS)


def _outcome(slot: SlotResult) -> int | None:
    if slot.error is not None:
        return _FAILED
    return _DEFERRED if slot.deferred else slot.token
