"""What a rank reports to the engine core about a step."""

from __future__ import annotations

import hashlib
import struct

import msgspec

from penstock.protocol.from_worker import Result, SlotResult
from penstock_worker.parallel.place import RankPlace

_DEFERRED, _FAILED = -1, -2
"""What the hash has in place of a token id."""

BITS = 63
"""Width of the hash in bits. It must fit a signed 64-bit integer, which every MessagePack reader
has."""


def report(result: Result, place: RankPlace, seconds: float) -> Result:
    """Returns what this rank sends. The lead rank sends the results of all slots; with several
    ranks, each sends a hash of what was sampled, by which the engine core checks that they agree.

    `result` is all that this rank knows of the step.
    """
    if place.ranks == 1:
        return msgspec.structs.replace(result, compute_seconds=seconds)
    slots = result.slots if place.lead else []
    said = sampled_hash(result.slots)
    return msgspec.structs.replace(result, slots=slots, compute_seconds=seconds, sampled=said)


def sampled_hash(slots: list[SlotResult]) -> int:
    """Returns a hash of which slot got which token, or why it got none; 0 if no slot was due for
    one."""
    pairs = [(each.slot, token) for each in slots for token in (_outcome(each), *each.more)]
    said = b"".join(struct.pack("<qq", slot, token) for slot, token in pairs if token is not None)
    if not said:
        return 0
    digest = hashlib.blake2b(said, digest_size=8).digest()
    return int.from_bytes(digest, "little") >> (64 - BITS)


def _outcome(slot: SlotResult) -> int | None:
    if slot.error is not None:
        return _FAILED
    return _DEFERRED if slot.deferred else slot.token
