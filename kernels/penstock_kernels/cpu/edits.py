"""What changes a row's logits before its token is chosen: biases and penalties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

EDIT = np.dtype(
    [
        *((name, np.float64) for name in ("presence", "frequency", "repetition")),
        *((name, np.int32) for name in ("first_biased", "num_biased", "first_seen", "num_seen")),
    ]
)
"""PkEdit (csrc/types.h), field for field."""

_NO_IDS = np.zeros(0, np.int32)
_NO_BIASES = np.zeros(0, np.float64)


class Edit(NamedTuple):
    """Biases, then penalties, each rounded to float32; a logit never becomes infinite."""

    biased_ids: np.ndarray = _NO_IDS
    """int32."""
    biases: np.ndarray = _NO_BIASES
    """float64, added to the logits of biased_ids."""
    seen_ids: np.ndarray = _NO_IDS
    """int32: ids that the prompt or the output holds, each once."""
    seen_counts: np.ndarray = _NO_IDS
    """int32: how often the output holds each of seen_ids."""
    presence: float = 0.0
    """Subtracted once where the output holds the id."""
    frequency: float = 0.0
    """Subtracted as often as the output holds the id."""
    repetition: float = 1.0
    """Divides the positive logits of seen_ids, and multiplies their others."""


@dataclass(frozen=True)
class Packed:
    """The edits of several rows, as the library reads them. Must live as long as it does."""

    edits: np.ndarray
    biased_ids: np.ndarray
    biases: np.ndarray
    seen_ids: np.ndarray
    seen_counts: np.ndarray

    def addresses(self) -> dict[str, int]:
        """By the names of PkSampling's fields."""
        return {name: int(values.ctypes.data) for name, values in vars(self).items()}


def pack(edits: Sequence[Edit], vocab: int) -> Packed | None:
    """None where there are no edits. Raises ValueError for an id beyond the vocabulary, for lists
    that don't match, and for a number that isn't finite or a repetition that isn't above 0."""
    if not edits:
        return None
    packed, first_biased, first_seen = [], 0, 0
    for edit in edits:
        biased, seen = len(edit.biased_ids), len(edit.seen_ids)
        if len(edit.biases) != biased or len(edit.seen_counts) != seen:
            raise ValueError("an edit's ids and their biases or counts differ in number")
        numbers = (edit.presence, edit.frequency, edit.repetition)
        packed.append((*numbers, first_biased, biased, first_seen, seen))
        first_biased += biased
        first_seen += seen
    result = Packed(
        np.array(packed, dtype=EDIT),
        np.concatenate([edit.biased_ids for edit in edits]).astype(np.int32, copy=False),
        np.concatenate([edit.biases for edit in edits]).astype(np.float64, copy=False),
        np.concatenate([edit.seen_ids for edit in edits]).astype(np.int32, copy=False),
        np.concatenate([edit.seen_counts for edit in edits]).astype(np.int32, copy=False),
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
