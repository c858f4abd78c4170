"""What the numbers depend on beside the request. Equal fingerprints, equal outputs."""

from __future__ import annotations

import hashlib

from penstock_worker.machine.cpu import instruction_set

ONE_RANK = "1 rank"


def fingerprint(digest: str, computing: str, layout: str = ONE_RANK) -> str:
    """sha256, hex. digest: of the model.  computing: fingerprint of backend and sampler.
    layout: how the model is spread over ranks (parallel.place.RankPlace).

    The number of threads is no part of it: no backend's sums depend on it.
    """
    parts = (digest, computing, instruction_set(), layout)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
