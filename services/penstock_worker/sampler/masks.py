"""Bitmasks of the ids that each row of a step may sample."""

from __future__ import annotations

import numpy as np

from penstock_worker.sampler.bits import everything, without, words_of
from penstock_worker.sampler.interface import SampleRequest

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
