"""The rule of transcripts that depends on logits, on the device."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock_worker.sampler.interface import SampleRequest


def prefer_timestamps(logits: Tensor, requests: list[SampleRequest]) -> Tensor:
    """Bans all but the timestamps in rows where these are more probable together than any other
    token. Queued; the host doesn't wait.

    logits: [rows, vocab] float32, adjusted, -inf where banned; changed in place.  Each row is
    summed by itself, so that others don't change its bits.
    """
    for row, request in enumerate(requests):
        speech = None if request.adjustments is None else request.adjustments.speech
        rules = None if speech is None else speech.timestamps
        if rules is None:
            continue
        left = logits[row].double()
        together = torch.logsumexp(left[rules.first :], 0)
        prevails = together > left[: rules.first].max()
        text = logits[row, : rules.first]
        text.masked_fill_(prevails, float("-inf"))
    return logits
