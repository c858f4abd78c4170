"""Layout of KV blocks for layers whose tokens see entries.

All blocks have one size. In the blocks of its group each layer has a part for keys, values, and
what tokens give to entries. Entries of all layers, with their keys, lie in blocks of the first
group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class LayerBytes:
    """What a layer has of a block, in bytes, each a multiple of a cache line."""

    keys: int
    values: int
    """With what tokens give to entries after them."""
    entries: int


@dataclass(frozen=True)
class EntryBlocks:
    """What each layer has of a block."""

    parts: tuple[tuple[slice, ...], ...]
    """Keys, values and entries of each layer."""
    size: int
    """Bytes of a block."""

    @staticmethod
    def of(layers: Sequence[LayerBytes], groups: Sequence[int]) -> EntryBlocks:
        """groups: of each layer."""
        ends = Counter[int]()

        def part(group: int, size: int) -> slice:
            ends[group] += size
            return slice(ends[group] - size, ends[group])

        parts = [
            (part(group, each.keys), part(group, each.values), part(0, each.entries))
            for each, group in zip(layers, groups, strict=True)
        ]
        return EntryBlocks(tuple(parts), max(ends.values()))

    def views(self, memory: np.ndarray) -> list[tuple[np.ndarray, ...]]:
        """Keys, values and entries of each layer in [blocks, size] uint8."""
        return [tuple(memory[:, each] for each in parts) for parts in self.parts]
