"""States of recurrent layers in plain memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from penstock.model.config import ModelConfig
from penstock.model.recurrent_spec import state_numbers
from penstock_worker.layers.recurrent.interface import Scan, StepStates


class StatesInMemory:
    """The states of any number of sequences, which are zeros at first. For one rank."""

    def __init__(self, config: ModelConfig) -> None:
        self._sizes = {
            number: state_numbers(spec)
            for number in range(config.num_layers)
            if (spec := config.layer(number).recurrent) is not None
        }
        self._states: defaultdict[int, dict[int, Tensor]] = defaultdict(self._fresh)

    def step(self, counts: Sequence[tuple[int, int]]) -> StepStates:
        """The states of a step whose rows are, in order, (sequence, number of rows)."""
        return _Step(self._states, counts)

    def of(self, sequence: int) -> dict[int, Tensor]:
        """The sequence's state by layer."""
        return self._states[sequence]

    def _fresh(self) -> dict[int, Tensor]:
        return {layer: torch.zeros(size) for layer, size in self._sizes.items()}


class _Step:
    def __init__(
        self, states: defaultdict[int, dict[int, Tensor]], counts: Sequence[tuple[int, int]]
    ) -> None:
        self._states = states
        self._counts = counts

    def scan(self, layer: int, features: Tensor, scan: Scan) -> Tensor:
        found, first = [], 0
        for sequence, rows in self._counts:
            found.append(scan(features[first : first + rows], self._states[sequence][layer]))
            first += rows
        padding = features.shape[0] - first
        return torch.cat((*found, found[0].new_zeros(padding, found[0].shape[1])))


TakesStep = Callable[[list[tuple[int, list[int]]]], list[Tensor]]
"""Computes a step's tokens of some sequences, (sequence, tokens) each. Returns their logits."""


def check_own_rows(alone: TakesStep, together: TakesStep) -> None:
    """A sequence has the same bits in one step and in chunks beside another one. `together`: for
    two sequences."""
    mine, other = [*range(7, 107)], [*range(5, 75)]
    (true,) = alone([(0, mine)])
    found: list[Tensor] = []
    beside = 0
    for count, more in ((1, 7), (15, 1), (50, 60), (33, 1), (1, 1)):
        start = sum(map(len, found))
        work = [(1, other[beside : beside + more]), (0, mine[start : start + count])]
        found.append(together(work)[1])
        beside += more
    assert bool(true.isfinite().all())
    assert true.std() > 0
    assert torch.equal(true, torch.cat(found))
