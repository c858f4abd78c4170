"""Which fingerprint an answer must be computed with, where that is decided before it is placed.

An answer that is given again must have the same bits. Engine cores of one gateway may compute
differently (processors with other instructions, weights that are replaced one after the other), so
a stream goes on where its origin's fingerprint is, and a retry goes where its key leads it, every
time and from every gateway.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from penstock.client.computing import UNTOLD, settled
from penstock.client.placement import fingerprint_name, names_of
from penstock.errors import EngineUnavailable, InvalidRequest

if TYPE_CHECKING:
    from penstock.client import EngineClient

LAST_EVENT_ID = "Last-Event-ID"


async def fingerprint_of_stream(client: EngineClient, name: str, adapter: str) -> str:
    """The fingerprint that a stream began with, by the name that its events have. adapter: digest
    of the one that is applied.

    Raises InvalidRequest where no engine core computes with it any more, and EngineUnavailable
    where one may that isn't known yet."""

    def found() -> str | None:
        every = client.lately()
        return next((each for each in every if fingerprint_name(each, adapter) == name), None)

    fingerprint = await settled(client, found, lambda: not client.undecided)
    if fingerprint is not None:
        return fingerprint
    there, undecided = names_of(client.fingerprints, adapter), client.undecided
    if undecided:
        raise EngineUnavailable(
            f"the stream was computed with {name}; of the engine cores, {undecided} may compute"
            f" with that and have not told yet; others compute with {there}"
        )
    raise InvalidRequest(
        f"the stream can't go on from this {LAST_EVENT_ID}: it was computed with {name}, and engine"
        f" cores compute with {there}: other weights, settings or another processor",
        param=LAST_EVENT_ID,
        code="model_changed",
    )


async def fingerprint_of_key(client: EngineClient, key: bytes) -> str:
    """The fingerprint that answers to an Idempotency-Key are computed with: of those that there
    are, the key's favourite, which stays when others go, and mostly when others come (rendezvous
    hashing). key: up to 64 bytes. Raises EngineUnavailable where none is known."""

    def score(fingerprint: str) -> bytes:
        return hashlib.blake2b(fingerprint.encode(), key=key, digest_size=8).digest()

    def found() -> str | None:
        return max(client.lately(), key=score, default=None)

    fingerprint = await settled(client, found, lambda: False)
    if fingerprint is None:
        raise EngineUnavailable(UNTOLD)
    return fingerprint
