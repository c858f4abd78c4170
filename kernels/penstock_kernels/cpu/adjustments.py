"""Adjustments of a row's logits before its token is sampled: biases and penalties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

ADJUSTMENTS = np.dtype(
    [
        *((name, np.float64) for name in ("presence", "frequency", "repetition")),
        *((name, np.int32) for name in ("first_biased", "num_biased", "first_seen", "num_seen")),
    ]
)
"""Same fields as PkEdit in csrc/batch_types.h."""

_NO_IDS = np.zeros(0, np.int32)
_NO_BIASES = np.zeros(0, np.float64)


class CPURowAdjustments(NamedTuple):
    """Biases, then penalties. Logits are rounded to float32 after each, and never become
    infinite."""

    biased_ids: np.ndarray = _NO_IDS
    """int32."""
    biases: np.ndarray = _NO_BIASES
    """float64, added to the logits of biased_ids."""
    seen_ids: np.ndarray = _NO_IDS
    """int32: distinct ids in the prompt or the output."""
    seen_counts: np.ndarray = _NO_IDS
    """int32: how often the output contains each of seen_ids."""
    presence: float = 0.0
    """Subtracted once from the logit of an id in the output."""
    frequency: float = 0.0
    """Subtracted once for each occurrence of the id in the output."""
    repetition: float = 1.0
    """Divides the logits of seen_ids that are positive, and multiplies the others."""


@dataclass(frozen=True)
class Packed:
    """The adjustments of several rows in the library's format. Must outlive the call that reads
    it."""

    edits: np.ndarray
    """[rows with adjustments] of the dtype ADJUSTMENTS."""
    biased_ids: np.ndarray
    biases: np.ndarray
    seen_ids: np.ndarray
    seen_counts: np.ndarray

    def addresses(self) -> dict[str, int]:
        """Returns the arrays' addresses by the names of PkSampling's fields."""
        return {name: int(values.ctypes.data) for name, values in vars(self).items()}


def pack(rows: Sequence[CPURowAdjustments], vocab: int) -> Packed | None:
    """Returns the packed adjustments, or None if there are none.

    Raises ValueError for an id outside of the vocabulary, for lists of different lengths, for a
    number that isn't finite, and for a repetition penalty that isn't above 0.
    """
    if not rows:
        return None
    packed, first_biased, first_seen = [], 0, 0
    for row in rows:
        biased, seen = len(row.biased_ids), len(row.seen_ids)
        if len(row.biases) != biased or len(row.seen_counts) != seen:
            raise ValueError("an edit's ids and their biases or counts differ in number")
        numbers = (row.presence, row.frequency, row.repetition)
        packed.append((*numbers, first_biased, biased, first_seen, seen))
        first_biased += biased
        first_seen += seen
    result = Packed(
        np.array(packed, dtype=ADJUSTMENTS),
        np.concatenate([row.biased_ids for row in rows]).astype(np.int32, copy=False),
        np.concatenate([row.biases for row in rows]).astype(np.float64, copy=False),
        np.concatenate([row.seen_ids for row in rows]).astype(np.int32, copy=False),
        np.concatenate([row.seen_counts for row in rows]).astype(np.int32, copy=False),
    )
    _check(result, vocab)
    return result


def _check(packed: Packed, vocab: int) -> None:
    for ids in (packed.biased_ids, packed.seen_ids):
        if len(ids) and (ids.min() < 0 or ids.max() >= vocab):
            raise ValueError(f"ids of an edit must lie in 0 to {vocab - 1}")
    for name in ("presence", "frequency", "repetition"):
        if not np.isfinite(packed.edits[name]).all():
            raise ValueError(f"{name} must be a finite number")
    if not (packed.edits["repetition"] > 0).all():
        raise ValueError("repetition must be above 0")
    if not np.isfinite(packed.biases).all():
        raise ValueError("biases must be finite numbers")
