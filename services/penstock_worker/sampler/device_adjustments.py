"""The logits adjustments of a step, as arrays for the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from penstock_kernels.triton.sampling.adjustments import DeviceRowAdjustments, count_tokens
from penstock_worker.sampler.adjustments import SequenceAdjustments
from penstock_worker.sampler.interface import SampleRequest
from penstock_worker.sampler.penalties import Penalties
from penstock_worker.sampler.token_masks import everything, without, words_of


def adjusted(requests: list[SampleRequest]) -> list[int]:
    """Returns the rows whose logits may be adjusted before sampling."""
    return [
        row
        for row, request in enumerate(requests)
        if request.adjustments is not None
        or request.allowed is not None
        or request.emitted < request.sampling.min_tokens
    ]


def masked(request: SampleRequest) -> bool:
    """Returns whether the request may hold back ids, so that it needs a mask."""
    adjustments = request.adjustments
    return (
        request.allowed is not None
        or request.emitted < request.sampling.min_tokens
        or (adjustments is not None and (adjustments.limited or adjustments.bans))
    )


class StepAdjustments:
    """The logits adjustments of one step."""

    def __init__(
        self,
        requests: list[SampleRequest],
        slots: list[int],
        which: list[int],
        counts: SlotCounts,
        vocab: int,
    ) -> None:
        """`requests` and `slots` are those of the step's rows; `which` are the rows that have
        adjustments."""
        self._counts = counts
        self._masks = Masks(vocab)
        self._mask_rows = np.full(len(requests), -1, np.int32)
        self._seen_rows = np.full(len(requests), -1, np.int32)
        # Rounded up to an even number, so that each of the three is aligned to 16 bytes.
        self._numbers = np.zeros((3, len(requests) + len(requests) % 2))
        self._penalties: list[tuple[float, float, float]] = []
        self._bias_counts = np.zeros(len(requests) + 1, np.int32)
        self._bias_ids: list[np.ndarray] = [np.zeros(1, np.int32)]
        self._biases: list[np.ndarray] = [np.zeros(1)]
        self._fills: list[CountsFill] = []
        self._counted: dict[int, int] = {}
        for row in which:
            request = requests[row]
            if masked(request):
                self._mask_rows[row] = self._masks.place(request)
            if request.adjustments is not None:
                self._add(row, slots[row], request, request.adjustments)
        punished = np.flatnonzero(self._seen_rows >= 0)
        if len(punished):
            self._numbers[:, punished] = np.array(self._penalties).T

    def _add(
        self, row: int, slot: int, request: SampleRequest, adjustments: SequenceAdjustments
    ) -> None:
        if adjustments.bias:
            self._bias_counts[row + 1] = len(adjustments.bias)
            self._bias_ids.append(adjustments.bias_ids)
            self._biases.append(adjustments.biases)
        penalties = adjustments.penalties
        if penalties is None:
            return
        self._seen_rows[row] = slot
        self._counted[slot] = request.emitted
        self._penalties.append((penalties.presence, penalties.frequency, penalties.repetition))
        fill = self._counts.missing(slot, request, penalties)
        if fill is not None:
            self._fills.append(fill)

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns what must be copied to the device, by the names that `rows` expects."""
        arrays = {
            # The lists begin with an entry of no row, so that none of them is empty.
            "bias_starts": np.cumsum(self._bias_counts, dtype=np.int32) + np.int32(1),
            "bias_ids": np.concatenate(self._bias_ids),
            "biases": np.concatenate(self._biases),
            "seen_rows": self._seen_rows,
            "numbers": self._numbers,
            "masks": self._masks.stacked(),
            "mask_rows": self._mask_rows,
        }
        for fill in self._fills:
            arrays[f"ids of {fill.slot}"] = fill.ids
            arrays[f"seen of {fill.slot}"] = fill.seen
        return arrays

    def rows(self, sent: Mapping[str, Tensor]) -> DeviceRowAdjustments:
        """Returns the kernel's arguments. `sent` are the arrays on the device. Also fills in the
        counts that are missing there."""
        for fill in self._fills:
            ids, seen = sent[f"ids of {fill.slot}"], sent[f"seen of {fill.slot}"]
            self._counts.fill(fill.slot, self._counted[fill.slot], ids, seen)
        presence, frequency, repetition = sent["numbers"].unbind()
        return DeviceRowAdjustments(
            sent["bias_starts"],
            sent["bias_ids"],
            sent["biases"],
            self._counts.seen,
            sent["seen_rows"],
            presence,
            frequency,
            repetition,
            sent["masks"],
            sent["mask_rows"],
        )

    def count(self, sent: Mapping[str, Tensor], tokens: Tensor) -> None:
        """Queues the counting of the step's tokens, [rows] int64 on the device."""
        if self._counted:
            self._counts.count(sent["seen_rows"], tokens, self._counted)


_NOTHING = np.zeros(0, np.int32)


class Masks:
    """The masks of one step. Equal masks are kept once."""

    def __init__(self, vocab: int) -> None:
        self._vocab = vocab
        self._masks: list[np.ndarray] = []
        self._places: dict[object, int] = {}

    def place(self, request: SampleRequest) -> int:
        """Returns the index of the mask that excludes `request.held_back()`. Returns -1 if nothing
        is held back, or if no id would be left."""
        key = _key(request)
        if key is None:
            return -1
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = self._added(_mask(request, self._vocab))
        return place

    def stacked(self) -> np.ndarray:
        """Returns [masks, words] int32. There is at least one mask, because the kernel needs its
        width."""
        return np.stack(self._masks or [everything(self._vocab)])

    def _added(self, mask: np.ndarray) -> int:
        if not mask.any():
            return -1
        self._masks.append(mask)
        return len(self._masks) - 1


def _held_back_early(request: SampleRequest) -> tuple[int, ...]:
    return request.sampling.held_back if request.emitted < request.sampling.min_tokens else ()


def _key(request: SampleRequest) -> object | None:
    """Returns a key that is equal for two requests of one step only if their masks are equal, or
    None if nothing is held back.

    Arrays are compared by identity, as the step's requests keep them alive. Sequences of one
    request share theirs.
    """
    early, adjustments = _held_back_early(request), request.adjustments
    if adjustments is None or not (adjustments.limited or adjustments.bans):
        return (
            early or None if request.allowed is None else (early, id(request.allowed), None, None)
        )
    return early, id(request.allowed), id(adjustments.allowed_words), id(adjustments.banned_ids)


def _mask(request: SampleRequest, vocab: int) -> np.ndarray:
    """Computes the mask for what SampleRequest.held_back excludes: where only some ids are allowed
    and min_tokens would exclude all of them, it is ignored."""
    early, adjustments = _held_back_early(request), request.adjustments
    banned = _NOTHING if adjustments is None else adjustments.banned_ids
    listed = None if adjustments is None else adjustments.allowed_words
    if request.allowed is None and listed is None:
        return without(without(everything(vocab), banned, vocab), early, vocab)
    rest = everything(vocab) if request.allowed is None else words_of(request.allowed)
    if listed is not None:
        rest = rest & listed
    rest = without(rest, banned, vocab)
    kept = without(rest, early, vocab)
    return kept if kept.any() else rest


# Counts on the device of the tokens that each slot has emitted, for penalties.


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
