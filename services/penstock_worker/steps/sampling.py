"""Turns slots and works into the sampler's requests, and its tokens into what is reported."""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from penstock.protocol.common import TokenLogprobs, Vectors
from penstock.protocol.from_worker import SlotResult
from penstock.protocol.to_worker import SlotWork
from penstock_worker.batch.slots import Slot, Slots
from penstock_worker.sampler import SampledToken, SampleRequest
from penstock_worker.speculation.drafting import NO_DRAFTS, Drafts


def sampling_rows(
    slots: Slots, scheduled: list[SlotWork], drafts: Drafts = NO_DRAFTS
) -> tuple[list[int], np.ndarray]:
    """Returns (slots to sample, the batch row of each): those whose work reaches the end of their
    tokens. Behind these, in the same order of slots, come the rows of what is drafted."""
    if drafts:
        return _rows_with_drafts(slots, scheduled, drafts)
    # Not numpy's cumsum: of a list of one number it takes longer than the rest.
    rows = np.array([*accumulate(work.count for work in scheduled)], dtype=np.int64) - 1
    ended = [
        at
        for at, (work, slot) in enumerate(zip(scheduled, slots.of(scheduled), strict=True))
        if work.start + work.count == len(slot.token_ids)
    ]
    if len(ended) == len(scheduled):
        return [work.slot for work in scheduled], rows
    return [scheduled[at].slot for at in ended], rows[ended]


def _rows_with_drafts(
    slots: Slots, scheduled: list[SlotWork], drafts: Drafts
) -> tuple[list[int], np.ndarray]:
    numbers: list[int] = []
    rows: list[int] = []
    drafted: list[int] = []
    end = 0
    for work, slot in zip(scheduled, slots.of(scheduled), strict=True):
        end += work.count
        if work.start + work.count != len(slot.token_ids):
            continue
        numbers.append(work.slot)
        rows.append(end - 1)
        count = len(drafts.get(work.slot, ()))
        drafted += range(end, end + count)
        end += count
    return numbers, np.array(rows + drafted, dtype=np.int64)


def sample_request(slot: Slot) -> SampleRequest:
    """Returns the request for the slot's next token, without its grammar mask."""
    emitted = len(slot.token_ids) - slot.num_prompt
    return SampleRequest(slot.sampling, slot.index, emitted, None, slot.adjustments)


def reported(
    work: SlotWork,
    sampled: SampledToken | None,
    prompt: list[TokenLogprobs] | None,
    vectors: Vectors | None = None,
) -> SlotResult:
    """Returns the result of a work for the engine core.

    `sampled` is None where no token was due. `prompt` has log-probabilities of the prompt's tokens.
    A token stands for `vectors`, where there are some.
    """
    if sampled is None:
        return SlotResult(work.slot, prompt_logprobs=prompt)
    if sampled.token is not None:
        return SlotResult(
            work.slot, sampled.token, sampled.logprobs, prompt_logprobs=prompt, vectors=vectors
        )
    if sampled.deferred:
        return SlotResult(work.slot, deferred=True, prompt_logprobs=prompt)
    return SlotResult(work.slot, error=sampled.error, error_code=sampled.error_code)
