"""What the numbers depend on beside the request. Equal fingerprints, equal outputs."""

from __future__ import annotations

import hashlib

from penstock_worker.cpu import instruction_set

LAYOUT = "1 rank"
"""How the model is spread over ranks."""


def fingerprint(digest: str, numerics: str, positions: int) -> str:
    """sha256, hex. digest: of the model.  numerics: of the backend (forward.interface.Recipe).
    positions: length of the rotary table."""
    parts = (digest, numerics, instruction_set(), f"{positions} positions", LAYOUT)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
