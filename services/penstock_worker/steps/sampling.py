"""What slots and a step's works make together: the sampler's questions, and the answers."""

from __future__ import annotations

import numpy as np

from penstock.protocol.common import TokenLogprobs
from penstock.protocol.from_worker import SlotResult
from penstock.protocol.to_worker import SlotWork
from penstock_worker.batch.slots import Slot, Slots
from penstock_worker.sampler import SampledToken, SampleRequest


def sampling_rows(slots: Slots, works: list[SlotWork]) -> tuple[list[int], np.ndarray]:
    """(slots whose next token is sampled, each one's row in the batch): their works reach the end
    of their tokens."""
    rows = np.cumsum([work.count for work in works]) - 1
    ended = [
        at
        for at, (work, slot) in enumerate(zip(works, slots.of(works), strict=True))
        if work.start + work.count == len(slot.tokens)
    ]
    if len(ended) == len(works):
        return [work.slot for work in works], rows
    return [works[at].slot for at in ended], rows[ended]


def ask_of(slot: Slot, allowed: np.ndarray | None = None) -> SampleRequest:
    """For the slot's next token. allowed: by its grammar."""
    emitted = len(slot.tokens) - slot.num_prompt
    return SampleRequest(slot.sampling, slot.index, emitted, allowed, slot.rules)


def told(
    work: SlotWork, choice: SampledToken | None, prompt: list[TokenLogprobs] | None
) -> SlotResult:
    """What the engine core hears of a work. choice: None where no token was to be sampled.
    prompt: log-probabilities of its prompt."""
    if choice is None:
        return SlotResult(work.slot, prompt_logprobs=prompt)
    if choice.token is not None:
        return SlotResult(work.slot, choice.token, choice.logprobs, prompt_logprobs=prompt)
    if choice.deferred:
        return SlotResult(work.slot, deferred=True, prompt_logprobs=prompt)
    return SlotResult(work.slot, error=choice.error, error_code=choice.error_code)
