"""The sampler of the CPU kernels: one call for all rows of a step."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from penstock.protocol.common import TokenLogprobs
from penstock_kernels.cpu.adjustments import CPURowAdjustments
from penstock_kernels.cpu.library import load
from penstock_kernels.cpu.likeliest import Likeliest
from penstock_kernels.cpu.memory import Scratch
from penstock_kernels.cpu.sampler import Row, Sampled, sample, uniform
from penstock_worker.batch.logits import Logits, in_numpy
from penstock_worker.sampler.adjustments import SequenceAdjustments
from penstock_worker.sampler.interface import (
    IMPOSSIBLE,
    NO_FINITE_LOGITS,
    SampledToken,
    SampleRequest,
    found,
)
from penstock_worker.sampler.listed import listed_ids

if TYPE_CHECKING:
    pass


class _ThreadMemory(threading.local):
    """What each calling thread keeps between calls."""

    def __init__(self, threads: int) -> None:
        self.scratch = Scratch()
        self.likeliest = Likeliest(threads)


class CPUSampler:
    """Samples by the C++ library."""

    fingerprint = "cpu"

    def __init__(self, threads: int) -> None:
        """`threads` is what one call may use. Raises ImportError without the library."""
        load()
        self._threads = threads
        self._memory = _ThreadMemory(threads)

    def sample(self, logits: Logits, requests: list[SampleRequest]) -> list[SampledToken]:
        values = in_numpy(logits)
        if all(request.wants_likeliest for request in requests):
            return found(self._memory.likeliest.tokens(values))
        draws = _draws(requests)
        rows = [
            _row(request, draw, row)
            for request, draw, row in zip(requests, draws, values, strict=True)
        ]
        sampled = sample(values, rows, threads=self._threads, scratch=self._memory.scratch)
        outcomes = [
            self._found(request, token, sampled, row, values[row])
            for row, (request, token) in enumerate(
                zip(requests, sampled.tokens.tolist(), strict=True)
            )
        ]
        return [request.judge(each) for request, each in zip(requests, outcomes, strict=True)]

    def _found(
        self, request: SampleRequest, token: int, sampled: Sampled, row: int, logits: np.ndarray
    ) -> SampledToken:
        """The outcome of a row. logits: its own, [vocab] float32."""
        sampling = request.sampling
        if token < 0:
            return NO_FINITE_LOGITS
        if sampling.logprobs is None:
            return SampledToken(token)
        if sampling.logprob_ids:
            return SampledToken(token, self._listed(logits, token, sampling.logprob_ids))
        return SampledToken(token, _logprobs(sampled, row))

    def _listed(self, logits: np.ndarray, token: int, ids: Sequence[int]) -> TokenLogprobs:
        """The log-probabilities of listed ids. The row is scored once for each of these few, so
        that an id has the same bits wherever it is reported."""
        shown = listed_ids(token, ids)
        rows = [Row(given=each, logprobs=0) for each in shown]
        scored = sample(
            np.repeat(logits[None], len(rows), axis=0),
            rows,
            threads=self._threads,
            scratch=self._memory.scratch,
        )
        values = np.maximum(scored.logprobs, np.float32(IMPOSSIBLE)).tolist()
        return TokenLogprobs(values[0], tuple(shown), tuple(values))

    def score(
        self, logits: Logits, tokens: Sequence[int], count: int
    ) -> list[TokenLogprobs] | None:
        rows = [Row(given=token, logprobs=count) for token in tokens]
        sampled = sample(
            in_numpy(logits), rows, threads=self._threads, scratch=self._memory.scratch
        )
        if (sampled.tokens < 0).any():
            return None
        return [_logprobs(sampled, row) for row in range(len(rows))]


def _draws(requests: list[SampleRequest]) -> list[float]:
    """Returns each row's draw; zeros if all rows take the most likely token, which needs none."""
    if not any(request.sampling.temperature for request in requests):
        return [0.0] * len(requests)
    return uniform(
        [request.sampling.seed for request in requests],
        [request.index for request in requests],
        [request.emitted for request in requests],
    ).tolist()


def _row(request: SampleRequest, draw: float, logits: np.ndarray) -> Row:
    sampling = request.sampling
    return Row(
        sampling.temperature,
        sampling.top_k,
        sampling.top_p,
        sampling.min_p,
        draw,
        request.held_from(logits),
        sampling.logprobs,
        None if request.adjustments is None else _row_adjustments(request.adjustments),
    )


def _row_adjustments(adjustments: SequenceAdjustments) -> CPURowAdjustments | None:
    penalties = adjustments.penalties
    if penalties is None:
        return (
            CPURowAdjustments(adjustments.bias_ids, adjustments.biases)
            if adjustments.bias
            else None
        )
    return CPURowAdjustments(
        adjustments.bias_ids,
        adjustments.biases,
        penalties.ids,
        penalties.counts,
        penalties.presence,
        penalties.frequency,
        penalties.repetition,
    )


def _logprobs(sampled: Sampled, row: int) -> TokenLogprobs:
    ids, logprobs = sampled.alternatives[row]
    own = max(float(sampled.logprobs[row]), IMPOSSIBLE)
    tops = np.maximum(logprobs, np.float32(IMPOSSIBLE)).tolist()
    return TokenLogprobs(own, tuple(ids.tolist()), tuple(tops))
