"""Everything that is tried, in order, and the same in every process."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from loadtest.gpu.parts.cases import Tiles
from loadtest.gpu.shapes import MODELS
from loadtest.gpu.tune.families import Family, settings
from loadtest.gpu.tune.settings import DRY, GPU, Setting, numbers

MODEL, DRY_MODEL = "Llama-3.1-8B", "tiny-llama"


@dataclass(frozen=True)
class Candidate:
    number: int  # its place in the order
    family: str
    setting: Setting
    tiles: Tiles

    @property
    def present(self) -> bool:
        return bool(self.tiles == self.setting.present)

    def facts(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "family": self.family,
            "setting": self.setting.name,
            "kind": type(self.tiles).__name__,
            "tiles": numbers(self.tiles),
            "present": self.present,
        }


def all_candidates(names: Iterable[str], *, dry: bool) -> list[Candidate]:
    """Of the families of these names."""
    sizes = DRY if dry else GPU
    chosen = settings(names, MODELS[DRY_MODEL if dry else MODEL], sizes)
    return ordered([(family, setting, sizes.candidates) for family, setting in chosen])


def ordered(chosen: list[tuple[Family, Setting, int]]) -> list[Candidate]:
    """Present choices first, then rounds in which each family has its turns."""
    ranked = []
    for place, (family, setting, most) in enumerate(chosen):
        for at, tiles in enumerate(setting.candidates(most)):
            turn = 0 if at == 0 else 1 + (at - 1) // family.turns
            ranked.append((turn, place, at, family.name, setting, tiles))
    ranked.sort(key=lambda each: each[:3])
    return [Candidate(number, *each[3:]) for number, each in enumerate(ranked)]
