"""Samples next tokens from logits: one call for all rows of a step."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from penstock_kernels.cpu.adjustments import CPURowAdjustments, pack
from penstock_kernels.cpu.library import load
from penstock_kernels.cpu.memory import Scratch
from penstock_kernels.cpu.structs import PkSampling

NO_LOGPROBS = -1
DRAW = np.dtype(
    [
        *((name, np.float64) for name in ("temperature", "top_p", "min_p", "draw")),
        *((name, np.int32) for name in ("top_k", "logprobs", "first_held", "num_held")),
        *((name, np.int32) for name in ("first_top", "given", "edit", "reserved")),
    ]
)
"""Same fields as PkDraw in csrc/batch_types.h."""


NOT_GIVEN = NOT_ADJUSTED = -1


class Row(NamedTuple):
    """How one row's token is sampled."""

    temperature: float = 1.0
    """Divisor of the logits; 0 takes the most likely token."""
    top_k: int = 0
    """Number of most likely tokens that remain; 0 for all."""
    top_p: float = 1.0
    """In (0, 1]; 1 is off."""
    min_p: float = 0.0
    """Least probability of a token, as a part of the highest; 0 for any."""
    draw: float = 0.0
    """In [0, 1)."""
    held_back: Sequence[int] | np.ndarray = ()
    """Ids that can't be sampled unless no other is left. Ids outside of the vocabulary are
    ignored."""
    logprobs: int | None = None
    """Number of top log-probabilities that are wanted; None for no log-probabilities."""
    adjustments: CPURowAdjustments | None = None
    """Adjusts the logits before the temperature is applied."""
    given: int | None = None
    """The token, if it is known and only its log-probability is wanted."""


@dataclass(frozen=True)
class Sampled:
    """The sampled tokens. Log-probabilities are of the raw logits, before any adjustment."""

    tokens: np.ndarray
    """[rows]; -1 for a row with a logit that is not finite."""
    logprobs: np.ndarray
    """[rows] float32, of the tokens; valid where they were requested and the row is finite."""
    alternatives: list[tuple[np.ndarray, np.ndarray]]
    """For each row, (ids, log-probabilities) of the most likely tokens; of equal ones the lower id
    first."""


def sample(
    logits: np.ndarray, rows: Sequence[Row], *, threads: int = 1, scratch: Scratch | None = None
) -> Sampled:
    """Samples one token for each row. `logits` is [rows, vocab] float32, and is not modified.

    Held-back ids are removed first, then the logits are adjusted. The distribution is restricted in
    the order temperature, top_k, top_p (the smallest set of most likely tokens that holds top_p of
    what is left), min_p (at least min_p of the most likely); of equal values, lower ids are kept.
    The token is found by inverting the cumulative sum in id order, in float64. A row's result
    depends on that row alone, and is the same with every instruction set.

    Raises ValueError for arguments out of range.
    """
    logits = np.ascontiguousarray(logits, dtype=np.float32)
    if logits.ndim != 2 or logits.shape[0] != len(rows) or logits.shape[1] < 1:
        raise ValueError(f"logits have shape {logits.shape}; ({len(rows)}, vocab) is needed")
    if threads < 1:
        raise ValueError(f"threads must be at least 1, not {threads}")
    vocab = logits.shape[1]
    draws, held_back = _packed(rows, vocab)
    adjustments = pack([row.adjustments for row in rows if row.adjustments is not None], vocab)
    first = draws["first_top"]
    ends = first + np.maximum(draws["logprobs"], 0)
    size = int(ends[-1]) if len(rows) else 0
    top_ids, top_logprobs = np.zeros(size, np.int32), np.zeros(size, np.float32)
    sampled = Sampled(
        tokens=np.empty(len(rows), np.int32),
        logprobs=np.zeros(len(rows), np.float32),
        alternatives=[
            (top_ids[start:end], top_logprobs[start:end])
            for start, end in zip(first.tolist(), ends.tolist(), strict=True)
        ],
    )
    if not len(rows):
        return sampled
    batch = PkSampling(
        rows=len(rows),
        vocab=vocab,
        threads=threads,
        logits=logits.ctypes.data,
        draws=draws.ctypes.data,
        held_back=held_back.ctypes.data,
        **({} if adjustments is None else adjustments.addresses()),
        tokens=sampled.tokens.ctypes.data,
        logprobs=sampled.logprobs.ctypes.data,
        top_ids=top_ids.ctypes.data,
        top_logprobs=top_logprobs.ctypes.data,
    )
    library, given = load(), ctypes.byref(batch)
    scratch = scratch or Scratch()  # Referenced by a name, so that it outlives the call.
    library.pk_sample(given, scratch.at_least(library.pk_sample_bytes(given)))
    return sampled


def _packed(rows: Sequence[Row], vocab: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns ([rows] DRAW, the held-back ids of all rows)."""
    packed, first_top, num_adjusted = [], 0, 0
    held_back = _HeldBack(vocab)
    for row in rows:
        _check(row)
        first_held, num_held = held_back.add(row.held_back)
        logprobs = NO_LOGPROBS if row.logprobs is None else min(row.logprobs, vocab)
        if logprobs < 0 and row.logprobs is not None:
            raise ValueError(f"logprobs must be None or at least 0, not {row.logprobs}")
        packed.append(
            (
                *(row.temperature, row.top_p, row.min_p, row.draw),
                *(min(max(row.top_k, 0), vocab), logprobs, first_held, num_held),
                *(first_top, _given(row.given, vocab)),
                *(NOT_ADJUSTED if row.adjustments is None else num_adjusted, 0),
            )
        )
        num_adjusted += row.adjustments is not None
        first_top += max(logprobs, 0)
    return np.array(packed, dtype=DRAW), held_back.ids()


def _given(token: int | None, vocab: int) -> int:
    if token is None:
        return NOT_GIVEN
    if not 0 <= token < vocab:
        raise ValueError(f"given must lie in 0 to {vocab - 1}, not {token}")
    return token


class _HeldBack:
    """The held-back ids of all rows in one array. Ids that rows share are stored once.

    A grammar holds back most of the vocabulary, so there is no Python loop over ids.
    """

    def __init__(self, vocab: int) -> None:
        self._vocab = vocab
        self._arrays = [np.zeros(0, np.int32)]
        self._length = 0
        self._places: dict[int, tuple[int, int]] = {}
        """(index of the first id, number of ids) by the identity of an array, which the rows keep
        alive."""

    def add(self, ids: Sequence[int] | np.ndarray) -> tuple[int, int]:
        """Returns (index of the first id, number of ids)."""
        if not len(ids):
            return 0, 0
        place = self._places.get(id(ids))
        if place is None:
            own = self._readable(ids)
            place = self._places[id(ids)] = (self._length, len(own))
            self._arrays.append(own)
            self._length += len(own)
        return place

    def ids(self) -> np.ndarray:
        return np.concatenate(self._arrays)

    def _readable(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """Returns the ids as int32, which the library reads. It ignores ids outside of the
        vocabulary."""
        if isinstance(ids, np.ndarray) and ids.dtype == np.int32:
            return ids
        given = np.asarray(ids, dtype=np.int64)
        return given[(given >= 0) & (given < self._vocab)].astype(np.int32)


_RANGES = {
    "temperature": "a finite number, at least 0",
    "top_p": "in (0, 1]",
    "min_p": "in [0, 1]",
    "draw": "in [0, 1)",
}


def _check(row: Row) -> None:
    """Raises ValueError for the first number out of range, which includes NaN. A few rows are
    checked sooner one by one than as arrays."""
    fits = {
        "temperature": 0 <= row.temperature < math.inf,
        "top_p": 0 < row.top_p <= 1,
        "min_p": 0 <= row.min_p <= 1,
        "draw": 0 <= row.draw < 1,
    }
    if not all(fits.values()):
        name = next(name for name, good in fits.items() if not good)
        raise ValueError(f"{name} must be {_RANGES[name]}, not {float(getattr(row, name))}")


def uniform(seeds: Sequence[int], sequences: Sequence[int], tokens: Sequence[int]) -> np.ndarray:
    """Returns [n] float64 in [0, 1), one for each (seed, sequence, token): 53 bits of
    Philox-4x32-10, a pure function of the three.

    0 <= seed < 2**64, 0 <= sequence < 2**32, 0 <= token < 2**64.
    """
    given = [np.array(values, dtype=np.uint64) for values in (seeds, sequences, tokens)]
    count = len(given[0])
    if any(values.shape != (count,) for values in given):
        raise ValueError(f"{len(seeds)}, {len(sequences)} and {len(tokens)} numbers don't match")
    draws = np.empty(count, np.float64)
    load().pk_uniform(count, *(values.ctypes.data for values in given), draws.ctypes.data)
    return draws
