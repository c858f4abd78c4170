"""A choice of tiles: what it is now, what else to try, and in which shapes it is measured."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from loadtest.gpu.parts.cases import Case, Tiles


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
    shared: str = ""  # for people: what else a change of it moves, or where it is decided
    turns: int = 1  # candidates that are tried of it in a round of all settings

    def candidates(self, most: int) -> list[Tiles]:
        """The present choice, what differs from it in one field, others, what differs in two."""
        one, two = (list(self._differing(count)) for count in (1, 2))
        found = dict.fromkeys([self.present, *one, *self.others, *two])
        return [tiles for tiles in found if tiles == self.present or self.sensible(tiles)][:most]

    def _differing(self, count: int) -> Iterator[Tiles]:
        """In `count` fields, the smaller steps first."""
        found = []
        for names in itertools.combinations(self.choices, count):
            for values in itertools.product(*map(self._others, names)):
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


@dataclass(frozen=True)
class Candidate:
    number: int  # its place in the order
    kernels: str  # what --kernels calls its setting
    setting: Setting
    tiles: Tiles

    @property
    def present(self) -> bool:
        return bool(self.tiles == self.setting.present)

    def facts(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "family": self.kernels,
            "setting": self.setting.name,
            "tiles": asdict(self.tiles),
            "present": self.present,
        }


def ordered(chosen: Iterable[tuple[str, Setting]], most: int) -> list[Candidate]:
    """Present choices first, then rounds in which each setting has its turns. Of each setting at
    most `most`."""
    ranked = []
    for place, (name, setting) in enumerate(chosen):
        for at, tiles in enumerate(setting.candidates(most)):
            turn = 0 if at == 0 else 1 + (at - 1) // setting.turns
            ranked.append((turn, place, at, name, setting, tiles))
    ranked.sort(key=lambda each: each[:3])
    return [Candidate(number, *each[3:]) for number, each in enumerate(ranked)]
