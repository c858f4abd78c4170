"""From slots and works to the sampler's requests, and from its tokens to what is reported."""

from __future__ import annotations

import numpy as np

from penstock.protocol.common import TokenLogprobs
from penstock.protocol.from_worker import SlotResult
from penstock.protocol.to_worker import SlotWork
from penstock_worker.batch.slots import Slot, Slots
from penstock_worker.sampler import SampledToken, SampleRequest


def sampling_rows(slots: Slots, scheduled: list[SlotWork]) -> tuple[list[int], np.ndarray]:
    """Returns (slots to sample, the batch row of each): those whose work reaches the end of their
    tokens."""
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
    """Returns the request for the slot's next token, without its grammar mask."""
    emitted = len(slot.token_ids) - slot.num_prompt
    return SampleRequest(slot.sampling, slot.index, emitted, None, slot.adjustments)


def reported(
    work: SlotWork, sampled: SampledToken | None, prompt: list[TokenLogprobs] | None
) -> SlotResult:
    """Returns the result of a work for the engine core.

    `sampled` is None where no token was due. `prompt` has log-probabilities of the prompt's tokens.
    """
    if sampled is None:
        return SlotResult(work.slot, prompt_logprobs=prompt)
    if sampled.token is not None:
        return SlotResult(work.slot, sampled.token, sampled.logprobs, prompt_logprobs=prompt)
    if sampled.deferred:
        return SlotResult(work.slot, deferred=True, prompt_logprobs=prompt)
    return SlotResult(work.slot, error=sampled.error, error_code=sampled.error_code)
