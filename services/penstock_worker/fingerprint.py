"""What the numbers depend on beside the request. Equal fingerprints, equal outputs."""

from __future__ import annotations

import hashlib

import torch

from penstock_worker.cpu import instruction_set

LAYOUT = "1 rank"
"""How the model is spread over ranks."""


def fingerprint(
    *, digest: str, dtype: torch.dtype, backend: str, threads: int, positions: int
) -> str:
    """sha256, hex. digest: of the model.  positions: length of the rotary table."""
    parts = (
        digest,
        str(dtype),
        backend,
        torch.__version__,
        instruction_set(),
        f"{threads} threads",
        f"{positions} positions",
        LAYOUT,
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
