"""A choice of tiles: what it is now, what else to try, and in which shapes it is measured."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace

from loadtest.gpu.parts.cases import Case, Tiles


@dataclass(frozen=True)
class Sizes:
    """The shapes; the first of each counts most. Of products: how many rows."""

    decode: tuple[tuple[int, int], ...] = ((64, 8192), (1, 32_768), (8, 2048), (256, 1024))
    """(batch, context) of attention."""
    chunks: tuple[tuple[int, int, int], ...] = ((1, 0, 8192), (1, 6144, 2048))
    """(sequences, before, new) of attention."""
    invariant_rows: tuple[int, ...] = (64, 1, 8, 256, 2048)
    packed_rows: tuple[int, ...] = (1, 8, 64)
    gguf_matrices: tuple[str, ...] = ("gate, up", "down")
    few_rows: tuple[int, ...] = (1, 8)
    many_rows: tuple[int, ...] = (64, 128)
    fp8_rows: tuple[int, ...] = (64, 1, 256, 2048)
    rows: tuple[int, ...] = (64, 8192)
    sampled_rows: int = 64
    candidates: int = 64  # of each setting, at most


GPU = Sizes()
DRY = Sizes(
    decode=((2, 40),),
    chunks=((1, 16, 20),),
    invariant_rows=(3,),
    packed_rows=(2,),
    gguf_matrices=("down",),
    few_rows=(2,),
    many_rows=(20,),
    fp8_rows=(2,),
    rows=(3,),
    sampled_rows=2,
    candidates=2,
)


@dataclass(frozen=True)
class Setting:
    name: str  # what `tiles.py` calls it
    kernel: str  # the one whose registers are told
    present: Tiles
    choices: Mapping[str, tuple[int, ...]]  # values of each field to try, in order
    cases: tuple[Case, ...]
    others: tuple[Tiles, ...] = ()  # whole candidates that differ in many fields at once
    sensible: Callable[[Tiles], bool] = lambda tiles: True
    """Whether a combination is worth trying."""
    moves: Mapping[str, str] = field(default_factory=dict)
    """Of a field, for people: what else a change of it moves, or where it is decided."""

    def candidates(self, most: int) -> list[Tiles]:
        """The present choice, what differs from it in one field, others, what differs in two."""
        one, two = (list(self._differing(count)) for count in (1, 2))
        found = dict.fromkeys([self.present, *one, *self.others, *two])
        return [tiles for tiles in found if tiles == self.present or self.sensible(tiles)][:most]

    def _differing(self, count: int) -> Iterator[Tiles]:
        """In `count` fields, the smaller steps first."""
        found = []
        for names in itertools.combinations(self.choices, count):
            for values in itertools.product(*(self._others(name) for name in names)):
                steps = sum(step for step, _ in values)
                changed = {name: value for name, (_, value) in zip(names, values, strict=True)}
                found.append((steps, replace(self.present, **changed)))
        for _, tiles in sorted(found, key=lambda each: each[0]):
            yield tiles

    def _others(self, name: str) -> list[tuple[int, int]]:
        """(steps from the present value, value)."""
        now, values = getattr(self.present, name), self.choices[name]
        if now not in values:
            raise ValueError(f"{self.name}: {name} is {now} now, which isn't among {values}")
        place = values.index(now)
        return [(abs(at - place), value) for at, value in enumerate(values) if at != place]


def numbers(tiles: Tiles) -> dict[str, int]:
    return {each.name: getattr(tiles, each.name) for each in fields(tiles)}
