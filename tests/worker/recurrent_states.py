"""States of recurrent layers in plain memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

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
