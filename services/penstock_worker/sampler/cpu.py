"""The sampler of the CPU kernels: one call for all rows of a step."""

from __future__ import annotations

import threading

import numpy as np
from torch import Tensor

from penstock.protocol.common import TokenLogprobs
from penstock_kernels.cpu.library import load
from penstock_kernels.cpu.memory import Scratch
from penstock_kernels.cpu.sampler import Row, Sampled, sample, uniform
from penstock_worker.sampler.interface import IMPOSSIBLE, NOT_FINITE, Ask, Choice


class _Own(threading.local):
    """Each calling thread's memory."""

    def __init__(self) -> None:
        self.scratch = Scratch()


class CPUSampler:
    """threads: that one call may use. Raises ImportError without the library."""

    numerics = "cpu"

    def __init__(self, threads: int) -> None:
        load()
        self._threads = threads
        self._own = _Own()

    def sample(self, logits: Tensor, asks: list[Ask]) -> list[Choice]:
        draws = uniform(
            [ask.sampling.seed for ask in asks],
            [ask.index for ask in asks],
            [ask.emitted for ask in asks],
        )
        rows = [_row(ask, draw) for ask, draw in zip(asks, draws.tolist(), strict=True)]
        sampled = sample(logits.numpy(), rows, threads=self._threads, scratch=self._own.scratch)
        return [
            _choice(ask, token, sampled, row)
            for row, (ask, token) in enumerate(zip(asks, sampled.tokens.tolist(), strict=True))
        ]


def _row(ask: Ask, draw: float) -> Row:
    sampling = ask.sampling
    return Row(
        sampling.temperature,
        sampling.top_k,
        sampling.top_p,
        sampling.min_p,
        draw,
        ask.held_back(),
        sampling.logprobs,
    )


def _choice(ask: Ask, token: int, sampled: Sampled, row: int) -> Choice:
    if token < 0:
        return Choice(error=NOT_FINITE)
    if ask.sampling.logprobs is None:
        return Choice(token)
    ids, logprobs = sampled.alternatives[row]
    own = max(float(sampled.logprobs[row]), IMPOSSIBLE)
    tops = np.maximum(logprobs, np.float32(IMPOSSIBLE)).tolist()
    return Choice(token, TokenLogprobs(own, ids.tolist(), tops))
