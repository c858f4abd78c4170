"""How often each slot's output holds each id, counted on the device for penalties."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from penstock_kernels.triton.sampling.edits import count_tokens
from penstock_worker.sampler.interface import SampleRequest
from penstock_worker.sampler.penalties import Penalties


@dataclass(frozen=True)
class CountsFill:
    """A slot's counts as the host knows them. ids: int64.  seen: int32, as EditRows.seen."""

    slot: int
    ids: np.ndarray
    seen: np.ndarray


class SlotCounts:
    """seen: [slots, vocab] int32, see EditRows.

    The host's counts are taken once, and again wherever a token is asked for other than the one
    after the last that was counted here: a step may have failed.
    """

    def __init__(self, device: torch.device, vocab: int, slots: int) -> None:
        self.seen = torch.zeros(slots, vocab, dtype=torch.int32, device=device)
        self._next: dict[int, int] = {}

    def forget(self, slot: int) -> None:
        self._next.pop(slot, None)

    def missing(self, slot: int, request: SampleRequest, penalties: Penalties) -> CountsFill | None:
        """What must be filled in before the request's token can be chosen; None: nothing.

        Raises ValueError where the host doesn't know it, because tokens before are on their way.
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
        """A CountsFill whose arrays are on the device now."""
        self.seen[slot].zero_()
        self.seen[slot].scatter_(0, ids, seen)
        self._next[slot] = emitted

    def count(self, numbers: Tensor, tokens: Tensor, slots: dict[int, int]) -> None:
        """numbers: [rows] int32, a row's slot or -1.  slots: how many tokens each of these slots
        had emitted before this one."""
        count_tokens(self.seen, numbers, tokens)
        for slot, emitted in slots.items():
            self._next[slot] = emitted + 1
