"""What slots and scheduled works make together: the sampler's requests, and what is reported."""

from __future__ import annotations

import numpy as np

from penstock.protocol.common import TokenLogprobs
from penstock.protocol.from_worker import SlotResult
from penstock.protocol.to_worker import SlotWork
from penstock_worker.batch.slots import Slot, Slots
from penstock_worker.sampler import SampledToken, SampleRequest


def sampling_rows(slots: Slots, scheduled: list[SlotWork]) -> tuple[list[int], np.ndarray]:
    """(slots whose next token is sampled, each one's row in the batch): their works reach the end
    of their tokens."""
    rows = np.cumsum([work.count for work in scheduled]) - 1
    ended = [
        at
        for at, (work, slot) in enumerate(zip(scheduled, slots.of(scheduled), strict=True))
        if work.start + work.count == len(slot.token_ids)
    ]
    if len(ended) == len(scheduled):
        return [work.slot for work in scheduled], rows
    return [scheduled[at].slot for at in ended], rows[ended]


def sample_request(slot: Slot) -> SampleRequest:
    """For the slot's next token, without what its grammar allows."""
    emitted = len(slot.token_ids) - slot.num_prompt
    return SampleRequest(slot.sampling, slot.index, emitted, None, slot.adjustments)


def reported(
    work: SlotWork, sampled: SampledToken | None, prompt: list[TokenLogprobs] | None
) -> SlotResult:
    """What the engine core hears of a work.

    sampled: None where no token was to be sampled.  prompt: log-probabilities of its prompt.
    """
    if sampled is None:
        return SlotResult(work.slot, prompt_logprobs=prompt)
    if sampled.token is not None:
        return SlotResult(work.slot, sampled.token, sampled.logprobs, prompt_logprobs=prompt)
    if sampled.deferred:
        return SlotResult(work.slot, deferred=True, prompt_logprobs=prompt)
    return SlotResult(work.slot, error=sampled.error, error_code=sampled.error_code)
