"""Turns a tower's vectors into rows of the decoder's size. A module of `projectors` has all that is
done for a form of projector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from torch import Tensor

from penstock.errors import UnsupportedModel
from penstock.model.projector_form import ProjectorForm
from penstock.model.tower_spec import VisionSpec
from penstock_worker.media.pieces import Pieces
from penstock_worker.vision import projectors
from penstock_worker.vision.picture import Picture
from penstock_worker.vision.picture_reading import Squares, read_picture
from penstock_worker.vision.rows import ONE_THREAD, RowThreads
from penstock_worker.weights.weights import Weights

Form = TypeVar("Form", bound=ProjectorForm)
Made = TypeVar("Made")
_FORMS: dict[type[ProjectorForm], type[Projector[Any]]] = {}


@dataclass(frozen=True)
class ProjectorParts:
    """What a projector is made for. outputs: the decoder's hidden size.  threads: those that
    `pieces` is given."""

    vision: VisionSpec
    weights: Weights
    outputs: int
    threads: RowThreads = ONE_THREAD

    @property
    def inputs(self) -> int:
        """Numbers of a tower's vector."""
        return self.vision.tower.width


class Projector(ABC, Generic[Form]):
    """Maps a tower's output, [patches, hidden], to [rows, the decoder's hidden size]. A subclass
    says of which form by `of`, and loads its weights when it is constructed."""

    ENDS: ClassVar[int] = 0
    """Rows after those of the last part of a picture."""
    PARTED: ClassVar[bool] = False
    """Whether a picture comes as patches of parts of several sizes, whatever the tower says."""
    ORDERED: ClassVar[bool] = False
    """Whether those of one size come before all of another."""

    def __init_subclass__(cls, of: type[ProjectorForm] | None = None) -> None:
        super().__init_subclass__()
        if of is not None:
            _FORMS[of] = cls

    def __init__(self, spec: Form, around: ProjectorParts) -> None:
        """Raises UnsupportedModel for weights that don't fit."""
        self._spec, self._vision, self._work = spec, around.vision, 0

    @property
    def row_work(self) -> int:
        """Multiplications for each row."""
        return self._work

    @property
    def squares(self) -> Squares:
        """Patches in a row of squares of which a tile must have whole ones."""
        return Squares()

    def read(self, tensors: Mapping[str, np.ndarray]) -> Picture:
        """Returns the picture that an item's tensors hold. Raises UnfitPicture."""
        squares, how = self.squares, {"parted": self.PARTED, "ordered": self.ORDERED}
        return read_picture(tensors, self._vision, squares, **how)

    def rows(self, picture: Picture) -> int:
        """Returns how many rows a part of a picture becomes, without ENDS: of each vector one,
        unless a form says otherwise."""
        return picture.tiles * (picture.per_tile + self._vision.tower.keeps_class)

    def grid(self, picture: Picture) -> tuple[int, ...] | None:
        """Returns MediaItem.grid of a picture on which positions depend: frames, rows and columns
        of merged patches; None where they depend on nothing. How far apart frames are isn't seen in
        them."""
        return None

    @abstractmethod
    def pieces(self, vectors: Tensor, picture: Picture, threads: RowThreads) -> Pieces[Tensor]:
        """`threads`: that share the rows."""


def load_projector(around: ProjectorParts) -> Projector[Any]:
    """Raises UnsupportedModel for weights that don't fit, and for a form that no module has."""
    spec = around.vision.projector
    return class_of(type(spec), _FORMS, projectors)(spec, around)


def class_of(form: type, known: Mapping[type, type[Made]], package: ModuleType) -> type[Made]:
    """Returns the class for a form, once all modules of the package are imported, whose classes
    are `known` by being defined. Raises UnsupportedModel where there is none."""
    for module in iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
    made = known.get(form)
    if made is None:
        raise UnsupportedModel(f"no module of {package.__name__} computes a {form.__name__}")
    return made
