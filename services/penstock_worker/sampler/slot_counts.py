"""Counts on the device of the tokens that each slot has emitted, for penalties."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from penstock_kernels.triton.sampling.adjustments import count_tokens
from penstock_worker.sampler.interface import SampleRequest
from penstock_worker.sampler.penalties import Penalties


@dataclass(frozen=True)
class CountsFill:
    """The counts of a slot as the host knows them."""

    slot: int
    ids: np.ndarray
    """Token ids, int64."""
    seen: np.ndarray
    """int32, as in DeviceRowAdjustments.seen."""


class SlotCounts:
    """The counts of all slots. `seen` is [slots, vocab] int32, see DeviceRowAdjustments.

    The host's counts are copied for a slot's first token, and again whenever the requested token
    isn't the one after the last that was counted here, because a step may have failed.
    """

    def __init__(self, device: torch.device, vocab: int, slots: int) -> None:
        self.seen = torch.zeros(slots, vocab, dtype=torch.int32, device=device)
        self._next: dict[int, int] = {}

    def forget(self, slot: int) -> None:
        self._next.pop(slot, None)

    def missing(self, slot: int, request: SampleRequest, penalties: Penalties) -> CountsFill | None:
        """Returns the counts that must be copied before the request's token can be sampled; None if
        there are none.

        Raises ValueError if the host doesn't know them, because earlier tokens are still being
        sampled.
        """
        if self._next.get(slot) == request.emitted:
            return None
        known = int(penalties.counts.sum())
        if known != request.emitted:
            raise ValueError(
                f"slot {slot} asks for token {request.emitted}, but the host has counted {known}, "
                f"and the device is at {self._next.get(slot)}"
            )
        return CountsFill(slot, penalties.ids.astype(np.int64), penalties.counts + np.int32(1))

    def fill(self, slot: int, emitted: int, ids: Tensor, seen: Tensor) -> None:
        """Sets a slot's counts. `ids` and `seen` are those of a CountsFill, copied to the
        device."""
        self.seen[slot].zero_()
        self.seen[slot].scatter_(0, ids, seen)
        self._next[slot] = emitted

    def count(self, numbers: Tensor, tokens: Tensor, slots: dict[int, int]) -> None:
        """Counts the tokens of a step. `numbers` is [rows] int32, the slot of each row or -1.
        `slots` maps each of these slots to the number of tokens that it had emitted before."""
        count_tokens(self.seen, numbers, tokens)
        for slot, emitted in slots.items():
            self._next[slot] = emitted + 1
