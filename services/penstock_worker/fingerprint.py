"""What the numbers depend on beside the request. Equal fingerprints, equal outputs."""

from __future__ import annotations

import hashlib

from penstock_worker.cpu import instruction_set

LAYOUT = "1 rank"
"""How the model is spread over ranks."""


def fingerprint(digest: str, numerics: str) -> str:
    """sha256, hex. digest: of the model.  numerics: of the backend (forward.interface.Recipe).

    The number of threads is no part of it: no backend's sums depend on it.
    """
    parts = (digest, numerics, instruction_set(), LAYOUT)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
