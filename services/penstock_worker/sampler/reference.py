"""The reference sampler: in torch, one row after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from penstock.protocol.common import TokenLogprobs
from penstock_kernels import reference as ops
from penstock_worker.batch.logits import Logits, in_numpy, in_torch
from penstock_worker.sampler.adjustments import adjust_row
from penstock_worker.sampler.interface import (
    IMPOSSIBLE,
    NOT_FINITE,
    SampledToken,
    SampleRequest,
)
from penstock_worker.sampler.listed import listed_ids

if TYPE_CHECKING:
    from torch import Tensor


class ReferenceSampler:
    """A sampler that needs no compiled library."""

    fingerprint = "reference"

    def sample(self, logits: Logits, requests: list[SampleRequest]) -> list[SampledToken]:
        best, finite = _argmax(in_numpy(logits))
        logits = in_torch(logits)
        draws = ops.uniform(
            [request.sampling.seed for request in requests],
            [request.index for request in requests],
            [request.emitted for request in requests],
        )
        choices = []
        for row, request in enumerate(requests):
            if not finite[row]:
                choices.append(SampledToken(error=NOT_FINITE))
                continue
            token = _choose(logits[row], request, best[row], draws[row])
            logprobs = None
            if request.sampling.logprobs is not None:
                sampling = request.sampling
                if sampling.logprob_ids:
                    logprobs = _listed(logits[row], token, sampling.logprob_ids)
                else:
                    logprobs = _logprobs(logits[row], token, request.sampling.logprobs)
            choices.append(request.judge(SampledToken(token, logprobs)))
        return choices

    def score(
        self, logits: Logits, tokens: Sequence[int], count: int
    ) -> list[TokenLogprobs] | None:
        if not all(_argmax(in_numpy(logits))[1]):
            return None
        logits = in_torch(logits)
        return [_logprobs(row, token, count) for row, token in zip(logits, tokens, strict=True)]


def _argmax(logits: np.ndarray) -> tuple[list[int], list[bool]]:
    """Returns the id of each row's largest logit (the lowest of equal ones), and whether the row is
    finite.

    Uses numpy, which guarantees the first of equal values and is fast: 64 rows of 49,152 on one
    thread take 0.4 ms, against 9.5 ms for torch's argmax and aminmax.
    """
    best = logits.argmax(-1)
    rows = np.arange(len(logits))
    finite = np.isfinite(logits[rows, best]) & np.isfinite(logits.min(-1))
    return best.tolist(), finite.tolist()


def _choose(logits: Tensor, request: SampleRequest, argmax: int, draw: float) -> int:
    """Samples one row. `argmax` is that of the unmodified row."""
    sampling = request.sampling
    held_back = np.asarray(request.held_from(logits.numpy()), dtype=np.int64)
    if len(held_back):
        logits = _without(logits, held_back)
    if request.adjustments is not None:
        logits = adjust_row(logits, request.adjustments)
    if sampling.temperature == 0.0:
        changed = len(held_back) or request.adjustments is not None
        return int(logits.numpy().argmax()) if changed else argmax
    cuts = ops.SamplingCuts(
        sampling.temperature, max(sampling.top_k, 0), sampling.top_p, sampling.min_p
    )
    return ops.sample_row(logits, cuts, draw)


def _without(logits: Tensor, held_back: np.ndarray) -> Tensor:
    """Returns the logits with these ids set to -inf, unless no id would be left."""
    masked = logits.clone()
    masked[torch.from_numpy(held_back[held_back < logits.shape[0]])] = float("-inf")
    return masked if bool(torch.isfinite(masked).any()) else logits


def _logprobs(logits: Tensor, token: int, count: int) -> TokenLogprobs:
    """Returns log-probabilities of the raw distribution."""
    row = ops.log_softmax_row(logits).clamp_(min=IMPOSSIBLE)
    top = ops.top_ids(logits, count) if count else torch.empty(0, dtype=torch.int64)
    return TokenLogprobs(float(row[token]), tuple(top.tolist()), tuple(row[top].tolist()))


def _listed(logits: Tensor, token: int, ids: Sequence[int]) -> TokenLogprobs:
    """Returns the same, of these ids in place of the likeliest."""
    row = ops.log_softmax_row(logits).clamp_(min=IMPOSSIBLE)
    shown = listed_ids(token, ids)
    return TokenLogprobs(float(row[token]), tuple(shown), tuple(row[shown].tolist()))
