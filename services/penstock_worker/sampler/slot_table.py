"""Sampling parameters of all slots in arrays, one column per slot, from which a step's are gathered
at once."""

from __future__ import annotations

import numpy as np

from penstock.protocol.common import TokenSampling
from penstock_worker.sampler.interface import SampleRequest

_TEMPERATURE, _TOP_P, _MIN_P, _SEED, _SEQUENCE, _TOKEN = range(6)
NO_LOGPROBS = -1
"""What stands in place of a number of log-probabilities: none requested."""


class SlotTable:
    """Learns a slot's parameters from its first SampleRequest. Slots are numbered from 0 to slots -
    1; `vocab` is the number of ids."""

    def __init__(self, slots: int, vocab: int) -> None:
        self._vocab = vocab
        self._known: list[tuple[TokenSampling, int] | tuple[None, int]] = [(None, -1)] * slots
        self._wide = np.zeros((6, slots), np.int64)
        self._floats = self._wide.view(np.float64)
        self._top_k = np.zeros(slots, np.int32)
        self._logprobs = np.full(slots, NO_LOGPROBS, np.int32)

    def forget(self, slot: int) -> None:
        self._known[slot] = (None, -1)

    def learn(self, requests: list[SampleRequest], slots: list[int]) -> None:
        """Stores the parameters that are new."""
        known = self._known
        for request, slot in zip(requests, slots, strict=True):
            sampling, index = known[slot]
            if sampling is not request.sampling or index != request.index:
                self._take(slot, request)

    def _take(self, slot: int, request: SampleRequest) -> None:
        sampling = request.sampling
        self._known[slot] = (sampling, request.index)
        self._floats[_TEMPERATURE, slot] = sampling.temperature or 0.0  # Not -0.0.
        self._floats[_TOP_P, slot] = sampling.top_p
        self._floats[_MIN_P, slot] = sampling.min_p
        self._wide.view(np.uint64)[_SEED, slot] = sampling.seed
        self._wide[_SEQUENCE, slot] = request.index
        self._top_k[slot] = min(max(sampling.top_k, 0), self._vocab)
        wanted = sampling.logprobs
        self._logprobs[slot] = NO_LOGPROBS if wanted is None else min(wanted, self._vocab)

    def wide(self, slots: np.ndarray, emitted: list[int]) -> np.ndarray:
        """Returns [6, rows] int64: temperature, top_p and min_p as the bits of float64, then seed,
        sequence index and token index. The number of rows is rounded up to an even one, so that
        each of the six is aligned to 16 bytes.

        `slots` is [rows]; `emitted` is the token index of each row.
        """
        rows = len(emitted)
        gathered = np.zeros((6, rows + rows % 2), np.int64)
        gathered[:, :rows] = self._wide[:, slots]
        gathered[_TOKEN, :rows] = emitted
        return gathered

    def greedy(self, slots: np.ndarray) -> bool:
        """Returns whether all of these slots take the most likely token."""
        return not self._wide[_TEMPERATURE, slots].any()

    def cuts(self, slots: np.ndarray) -> bool:
        """Returns whether any of these slots samples from less than the whole vocabulary."""
        top_k = self._top_k[slots]
        cut = (top_k > 0) & (top_k < self._vocab)
        cut |= (self._floats[_TOP_P, slots] < 1.0) | (self._floats[_MIN_P, slots] > 0.0)
        return bool((cut & (self._floats[_TEMPERATURE, slots] > 0.0)).any())

    def top_k(self, slots: np.ndarray) -> np.ndarray:
        """Returns [rows] int32; 0 is off."""
        return self._top_k[slots]

    def logprobs(self, slots: np.ndarray) -> np.ndarray:
        """Returns [rows] int32: the number of top log-probabilities requested, or NO_LOGPROBS."""
        return self._logprobs[slots]
