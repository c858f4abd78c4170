"""Which ids each row of a step may choose."""

from __future__ import annotations

import numpy as np

from penstock_worker.sampler.bits import everything, without, words_of
from penstock_worker.sampler.interface import SampleRequest

_NOTHING = np.zeros(0, np.int32)


class Masks:
    """The masks of one step, equal ones kept once. vocab: ids of a row."""

    def __init__(self, vocab: int) -> None:
        self._vocab = vocab
        self._masks: list[np.ndarray] = []
        self._places: dict[object, int] = {}

    def place(self, ask: SampleRequest) -> int:
        """Of the mask that holds back what `ask.held_back()` says; -1: nothing is held back, or
        no id would be left."""
        key = _key(ask)
        if key is None:
            return -1
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = self._added(_mask(ask, self._vocab))
        return place

    def stacked(self) -> np.ndarray:
        """[masks, words] int32, at least one: a kernel wants its width."""
        return np.stack(self._masks or [everything(self._vocab)])

    def _added(self, mask: np.ndarray) -> int:
        if not mask.any():
            return -1
        self._masks.append(mask)
        return len(self._masks) - 1


def _early(ask: SampleRequest) -> tuple[int, ...]:
    return ask.sampling.held_back if ask.emitted < ask.sampling.min_tokens else ()


def _key(ask: SampleRequest) -> object | None:
    """Equal for two asks of one step only if their masks are. None: nothing is held back.

    Arrays are told apart by where they are: a step's asks keep them alive. Sequences of one request
    share theirs.
    """
    early, rules = _early(ask), ask.rules
    if rules is None or not (rules.limited or rules.banned):
        return early or None if ask.allowed is None else (early, id(ask.allowed), None, None)
    return early, id(ask.allowed), id(rules.allowed_words), id(rules.banned_ids)


def _mask(ask: SampleRequest, vocab: int) -> np.ndarray:
    """As SampleRequest.held_back has it: where not all ids are allowed, min_tokens gives way to
    need."""
    early, rules = _early(ask), ask.rules
    banned = _NOTHING if rules is None else rules.banned_ids
    listed = None if rules is None else rules.allowed_words
    if ask.allowed is None and listed is None:
        return without(without(everything(vocab), banned, vocab), early, vocab)
    rest = everything(vocab) if ask.allowed is None else words_of(ask.allowed)
    if listed is not None:
        rest = rest & listed
    rest = without(rest, banned, vocab)
    kept = without(rest, early, vocab)
    return kept if kept.any() else rest
