"""What the numbers depend on beside the request. Equal fingerprints, equal outputs."""

from __future__ import annotations

import hashlib

import torch

from penstock_worker.cpu import instruction_set

LAYOUT = "1 rank"
"""How the model is spread over ranks."""


def fingerprint(*, digest: str, dtype: torch.dtype, backend: str) -> str:
    """sha256, hex. digest: of the model.

    The number of threads is no part of it: each computes whole sequences by itself.
    """
    parts = (
        digest,
        str(dtype),
        backend,
        torch.__version__,
        instruction_set(),
        LAYOUT,
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
