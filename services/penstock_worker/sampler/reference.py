"""The reference: one row after the other, in torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from penstock.protocol.common import TokenLogprobs
from penstock_kernels import reference as ops
from penstock_worker.sampler.adjustments import SequenceAdjustments
from penstock_worker.sampler.interface import IMPOSSIBLE, NOT_FINITE, SampledToken, SampleRequest


class ReferenceSampler:
    """Needs no library."""

    fingerprint = "reference"

    def sample(self, logits: Tensor, requests: list[SampleRequest]) -> list[SampledToken]:
        best, finite = _argmax(logits.numpy())
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
                logprobs = _logprobs(logits[row], token, request.sampling.logprobs)
            choices.append(request.judge(SampledToken(token, logprobs)))
        return choices

    def score(
        self, logits: Tensor, tokens: Sequence[int], count: int
    ) -> list[TokenLogprobs] | None:
        if not all(_argmax(logits.numpy())[1]):
            return None
        return [_logprobs(row, token, count) for row, token in zip(logits, tokens, strict=True)]


def _argmax(logits: np.ndarray) -> tuple[list[int], list[bool]]:
    """Each row's largest logit, of equal ones the lowest id; and whether the row is finite.

    By numpy, which promises the first of equals and is quick: at 64 rows of 49,152, on one thread,
    0.4 ms where torch's argmax and aminmax take 9.5.
    """
    best = logits.argmax(-1)
    rows = np.arange(len(logits))
    finite = np.isfinite(logits[rows, best]) & np.isfinite(logits.min(-1))
    return best.tolist(), finite.tolist()


def _choose(logits: Tensor, request: SampleRequest, argmax: int, draw: float) -> int:
    """argmax: of the row as it is, before ids are held back or anything is changed."""
    sampling = request.sampling
    held_back = np.asarray(request.held_back(), dtype=np.int64)
    if len(held_back):
        logits = _without(logits, held_back)
    if request.adjustments is not None:
        logits = ops.edit_row(logits, _edits(request.adjustments))
    if sampling.temperature == 0.0:
        changed = len(held_back) or request.adjustments is not None
        return int(logits.numpy().argmax()) if changed else argmax
    cuts = ops.SamplingCuts(
        sampling.temperature, max(sampling.top_k, 0), sampling.top_p, sampling.min_p
    )
    return ops.sample_row(logits, cuts, draw)


def _edits(adjustments: SequenceAdjustments) -> ops.Edits:
    penalties = adjustments.penalties
    if penalties is None:
        return ops.Edits(adjustments.bias)
    counts = dict(zip(penalties.ids.tolist(), penalties.counts.tolist(), strict=True))
    return ops.Edits(
        adjustments.bias, counts, penalties.presence, penalties.frequency, penalties.repetition
    )


def _without(logits: Tensor, held_back: np.ndarray) -> Tensor:
    """logits with some ids impossible, unless no id would be left."""
    masked = logits.clone()
    masked[torch.from_numpy(held_back[held_back < logits.shape[0]])] = float("-inf")
    return masked if bool(torch.isfinite(masked).any()) else logits


def _logprobs(logits: Tensor, token: int, count: int) -> TokenLogprobs:
    """Of the raw distribution."""
    row = ops.log_softmax_row(logits).clamp_(min=IMPOSSIBLE)
    top = ops.top_ids(logits, count) if count else torch.empty(0, dtype=torch.int64)
    return TokenLogprobs(float(row[token]), top.tolist(), row[top].tolist())
