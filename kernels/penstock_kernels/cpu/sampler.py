"""Choosing next tokens from logits: one call for all rows of a step."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from penstock_kernels.cpu.edits import Edit, pack
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
"""PkDraw (csrc/types.h), field for field."""


NOT_GIVEN = NOT_EDITED = -1


class Row(NamedTuple):
    """How one row's token is chosen."""

    temperature: float = 1.0
    """0 takes the most likely token."""
    top_k: int = 0
    """0: off."""
    top_p: float = 1.0
    """In (0, 1]; 1: off."""
    min_p: float = 0.0
    """0: off."""
    draw: float = 0.0
    """In [0, 1)."""
    held_back: Sequence[int] | np.ndarray = ()
    """Ids that can't be chosen unless no other is left; those beyond the vocabulary mean
    nothing."""
    logprobs: int | None = None
    """Number of alternatives whose log-probabilities are wanted; None: no log-probabilities."""
    edit: Edit | None = None
    """Changes the logits, before the temperature."""
    given: int | None = None
    """The token, where it is known and only its log-probability is wanted."""


@dataclass(frozen=True)
class Sampled:
    """What was chosen. Log-probabilities are of the raw logits, before any cut."""

    tokens: np.ndarray
    """[rows]; -1 for a row with a logit that isn't a finite number."""
    logprobs: np.ndarray
    """[rows] float32, of the tokens, where they were asked for and the row is finite."""
    alternatives: list[tuple[np.ndarray, np.ndarray]]
    """For each row, (ids, log-probabilities) of the most likely tokens, equal ones by lower id."""


def sample(
    logits: np.ndarray, rows: Sequence[Row], *, threads: int = 1, scratch: Scratch | None = None
) -> Sampled:
    """logits: [rows, vocab] float32, not changed; one Row for each.

    A row is cut to what isn't held back, then edited.
    The distribution is cut in the order temperature, top_k, top_p (smallest set of most likely
    tokens that holds top_p of what is left), min_p (at least min_p of the most likely); ties go to
    lower ids.  Then the inverse of its cumulative sum, in id order, in float64.  A row's result
    depends on that row alone, and is the same on every instruction set.
    Raises ValueError for what can't be.
    """
    logits = np.ascontiguousarray(logits, dtype=np.float32)
    if logits.ndim != 2 or logits.shape[0] != len(rows) or logits.shape[1] < 1:
        raise ValueError(f"logits have shape {logits.shape}; ({len(rows)}, vocab) is needed")
    if threads < 1:
        raise ValueError(f"threads must be at least 1, not {threads}")
    vocab = logits.shape[1]
    draws, held_back = _packed(rows, vocab)
    _check(draws)
    edits = pack([row.edit for row in rows if row.edit is not None], vocab)
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
        **({} if edits is None else edits.addresses()),
        tokens=sampled.tokens.ctypes.data,
        logprobs=sampled.logprobs.ctypes.data,
        top_ids=top_ids.ctypes.data,
        top_logprobs=top_logprobs.ctypes.data,
    )
    library, given = load(), ctypes.byref(batch)
    scratch = scratch or Scratch()  # A name of its own: it must live as long as the call.
    library.pk_sample(given, scratch.at_least(library.pk_sample_bytes(given)))
    return sampled


def _packed(rows: Sequence[Row], vocab: int) -> tuple[np.ndarray, np.ndarray]:
    """([rows] DRAW, the held-back ids of all rows)."""
    packed, first_top, edits = [], 0, 0
    held_back = _HeldBack(vocab)
    for row in rows:
        first_held, num_held = held_back.add(row.held_back)
        logprobs = NO_LOGPROBS if row.logprobs is None else min(row.logprobs, vocab)
        if logprobs < 0 and row.logprobs is not None:
            raise ValueError(f"logprobs must be None or at least 0, not {row.logprobs}")
        packed.append(
            (
                *(row.temperature, row.top_p, row.min_p, row.draw),
                *(min(max(row.top_k, 0), vocab), logprobs, first_held, num_held),
                *(first_top, _given(row.given, vocab)),
                *(NOT_EDITED if row.edit is None else edits, 0),
            )
        )
        edits += row.edit is not None
        first_top += max(logprobs, 0)
    return np.array(packed, dtype=DRAW), held_back.ids()


def _given(token: int | None, vocab: int) -> int:
    if token is None:
        return NOT_GIVEN
    if not 0 <= token < vocab:
        raise ValueError(f"given must lie in 0 to {vocab - 1}, not {token}")
    return token


class _HeldBack:
    """The held-back ids of all rows, one array after the other; one that rows share is there once.

    A grammar holds back most of the vocabulary: no loop goes over ids in Python.
    """

    def __init__(self, vocab: int) -> None:
        self._vocab = vocab
        self._arrays = [np.zeros(0, np.int32)]
        self._length = 0
        self._places: dict[int, tuple[int, int]] = {}
        """By where the array is: the rows keep it there."""

    def add(self, ids: Sequence[int] | np.ndarray) -> tuple[int, int]:
        """(where they begin, how many they are)."""
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
        """What the library can read: it passes over ids beyond the vocabulary by itself."""
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


def _check(draws: np.ndarray) -> None:
    """Raises ValueError for the first number out of range: NaN is, too."""
    temperature, top_p = draws["temperature"], draws["top_p"]
    min_p, draw = draws["min_p"], draws["draw"]
    fits = {
        "temperature": (temperature >= 0) & (temperature < np.inf),
        "top_p": (top_p > 0) & (top_p <= 1),
        "min_p": (min_p >= 0) & (min_p <= 1),
        "draw": (draw >= 0) & (draw < 1),
    }
    for name, good in fits.items():
        if not good.all():
            worst = float(draws[name][np.argmin(good)])
            raise ValueError(f"{name} must be {_RANGES[name]}, not {worst}")


def uniform(seeds: Sequence[int], sequences: Sequence[int], tokens: Sequence[int]) -> np.ndarray:
    """[n] float64 in [0, 1), one for each (seed, sequence, token): 53 bits of Philox-4x32-10, a
    pure function of the three.

    0 <= seed < 2**64, 0 <= sequence < 2**32, 0 <= token < 2**64.
    """
    given = [np.array(values, dtype=np.uint64) for values in (seeds, sequences, tokens)]
    count = len(given[0])
    if any(values.shape != (count,) for values in given):
        raise ValueError(f"{len(seeds)}, {len(sequences)} and {len(tokens)} numbers don't match")
    draws = np.empty(count, np.float64)
    load().pk_uniform(count, *(values.ctypes.data for values in given), draws.ctypes.data)
    return draws
