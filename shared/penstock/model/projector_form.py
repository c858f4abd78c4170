"""What all forms of projector have in common."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

QUARTER = 4
"""Patches in a row of a square that convolutions make one vector of."""


class PictureSides(NamedTuple):
    """What a row's share of a picture depends on. merged: patches in a row of a square of which the
    tower makes one.  side, larger: patches in a row of a picture of a fixed size, and of the second
    tower's.  pixels: in a row of that picture; 0: pictures differ."""

    merged: int
    side: int
    larger: int
    pixels: int


class ProjectorForm(msgspec.Struct, frozen=True, kw_only=True):
    """A form of projector: how a tower's vectors become rows of the decoder's size."""

    @property
    def order(self) -> int:
        """Patches in a row of the squares by which a picture's patches are ordered."""
        return 1

    def patches_in_row(self, sides: PictureSides) -> int:
        """Returns the least number of patches that one row is made of, without class tokens and
        rows after the last."""
        return 1


class FactorProjector(ProjectorForm, frozen=True, kw_only=True):
    """One row for each square of factor x factor patches."""

    factor: int

    def patches_in_row(self, sides: PictureSides) -> int:
        return (self.factor * sides.merged) ** 2


class QuarterProjector(ProjectorForm, frozen=True, kw_only=True):
    """Convolutions make one vector of each square of QUARTER x QUARTER patches."""

    def patches_in_row(self, sides: PictureSides) -> int:
        return QUARTER**2
