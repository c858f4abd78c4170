"""Rows of a sequence that aren't as their tokens say: for the slow decoder, and for steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import msgspec
import numpy as np

from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import NormSpec
from penstock.model.projector_spec import MLPProjector
from penstock.model.tower_spec import RotaryPositions, TowerSpec, VisionSpec
from penstock_kernels.cpu.decoder_step import GivenRows
from penstock_kernels.cpu.operands import RotationTable
from tests.kernels.cpu.slow_decoder import Sizes, SlowDecoder, unseen_keys

SEES = VisionSpec(
    tower=TowerSpec(
        hidden_size=8,
        intermediate_size=8,
        num_layers=1,
        num_heads=1,
        patch=1,
        norm=NormSpec(),
        positions=RotaryPositions(),
    ),
    projector=MLPProjector(),
)
"""Some tower: a program only asks whether there is one."""


@dataclass(frozen=True)
class SlowGiven:
    """Rows that are given for a whole sequence. numbers: [n, width], of the tokens at `places`.
    turns: [3, tokens]. last_seen: [tokens]. between: [tokens] bool."""

    places: np.ndarray
    numbers: np.ndarray
    turns: np.ndarray | None = None
    last_seen: np.ndarray | None = None
    between: np.ndarray | None = None


def joined(parts: list[tuple[SlowGiven, int, int]]) -> GivenRows:
    """Joins what a step's works are given: each one's sequence, its start and its count."""
    rows, numbers, turns, last_seen, between, row = [], [], [], [], [], 0
    for given, start, count in parts:
        inside = (given.places >= start) & (given.places < start + count)
        rows.append(given.places[inside] - start + row)
        numbers.append(given.numbers[inside])
        some = slice(start, start + count)
        if given.turns is not None:
            turns.append(given.turns[:, some])
        if given.last_seen is not None:
            last_seen.append(given.last_seen[some])
        if given.between is not None:
            between.append(given.between[some])
        row += count
    return GivenRows(
        rows=np.concatenate(rows).astype(np.int32),
        numbers=np.concatenate(numbers).astype(np.float32),
        turns=np.concatenate(turns, 1).astype(np.int32) if turns else None,
        last_seen=np.concatenate(last_seen).astype(np.int32) if last_seen else None,
        between=np.concatenate(between).astype(np.uint8) if between else None,
    )


@dataclass(frozen=True)
class SeeingSizes(Sizes):
    """axes: of each rotary pair; empty: none."""

    axes: tuple[int, ...] = ()
    in_windows: bool = False
    """Whether rows see one another in layers with a window alone."""

    @cached_property
    def config(self) -> ModelConfig:
        sees = msgspec.structs.replace(SEES, windowed_spans=self.in_windows)
        return msgspec.structs.replace(super().config, vision=sees)


class SlowSeeing(SlowDecoder):
    """given: of the sequence whose logits are computed; None: its tokens."""

    sizes: SeeingSizes

    def __init__(self, sizes: SeeingSizes) -> None:
        super().__init__(sizes)
        self.given: SlowGiven | None = None

    def _angles(self, number: int) -> RotationTable:
        axes = np.array(self.sizes.axes, np.uint8) if self.sizes.axes else None
        return replace(super()._angles(number), axes=axes)

    def _embedded(self, tokens: list[int]) -> np.ndarray:
        x = super()._embedded(tokens)
        if self.given is not None:
            x[self.given.places] = self.given.numbers[:, : x.shape[1]]
        return x

    def _table(self, number: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        table, turns = self.rotations[number], None if self.given is None else self.given.turns
        if turns is None or table.axes is None:
            return super()._table(number, count)
        places = turns[table.axes]  # [pairs, tokens]
        pairs = np.arange(len(table.axes))[:, None]
        return table.cosines[places, pairs].T, table.sines[places, pairs].T

    def _hidden(self, count: int, spec: AttentionSpec) -> np.ndarray:
        seen = None if self.given is None else self.given.last_seen
        if seen is None or (self.sizes.in_windows and spec.window is None):
            return super()._hidden(count, spec)
        # Those behind, up to the last one that is seen; those before, as ever.
        behind = np.arange(count) > np.arange(count)[:, None]
        hidden = (unseen_keys(count, spec) & ~behind) | (np.arange(count) > seen[:, None])
        if self.given is not None and self.given.between is not None:
            between = self.given.between
            hidden = hidden | (behind & (between | between[:, None]))
        return hidden
