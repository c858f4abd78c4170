"""Identifies everything but the request that outputs depend on: equal fingerprints, equal
outputs."""

from __future__ import annotations

import hashlib

from penstock_worker.machine.cpu import instruction_set

ONE_RANK = "1 rank"
TABLES = "tables 2"
"""The version of the rotary angles that backends are given (layers.rotary_tables), raised with each
change of their bits."""


def fingerprint(digest: str, computing: str, layout: str = ONE_RANK) -> str:
    """Returns a sha256 in hex.

    `digest` is that of the model, `computing` the fingerprint of backend and sampler, and `layout`
    how the model is distributed over ranks (parallel.place.RankPlace).

    The number of threads is not part of it, because no backend's sums depend on it.
    """
    parts = (digest, *arithmetic(computing, layout))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def arithmetic(computing: str, layout: str = ONE_RANK) -> tuple[str, str, str]:
    """Returns what `fingerprint` covers in addition to the model, in words."""
    return f"{computing} {TABLES}", instruction_set(), layout
