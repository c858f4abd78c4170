"""What the CUDA backend can compute."""

from __future__ import annotations

from penstock_worker.forward.common_mechanisms import COMMON

MECHANISMS = COMMON
"""What this backend has beyond Llama's layers."""
