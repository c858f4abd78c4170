"""The tensors of a quantised module, and what a format makes of them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

import numpy as np

from penstock.errors import UnsupportedModel
from penstock.formats.safetensors_file import SafetensorsTensor
from penstock.model.quantised_checkpoint import WeightScheme
from penstock_worker.quantisation.checkpoints.matrix import CheckpointMatrix

FLOATS = ("F32", "F16", "BF16")
POWERS = ("F8_E8M0", "U8")
"""Types of scales that are powers of two: e8m0, which some files call bytes."""
_INTEGERS = {"I64": "<i8", "I32": "<i4", "I8": "i1", "U8": "u1"}


class Module:
    """The tensors whose names begin alike: `NAME.qweight`, `NAME.scales`, …"""

    def __init__(self, name: str, parts: dict[str, SafetensorsTensor]) -> None:
        """`parts`: by what follows the module's name."""
        self.name = name
        self.parts = parts
        self.taken: set[str] = set()

    def take(
        self, part: str, types: Collection[str], shape: tuple[int, ...] | None = None
    ) -> SafetensorsTensor:
        """Returns a tensor. Raises UnsupportedModel if it is missing, or has another type or
        shape."""
        found = self.find(part, types)
        if found is None:
            raise UnsupportedModel(f"the quantised module {self.name} lacks its tensor {part}")
        if shape is not None and found.shape != shape:
            raise UnsupportedModel(
                f"tensor {found.name} has shape {found.shape}; {shape} is needed beside the "
                f"module's other tensors"
            )
        return found

    def find(self, part: str, types: Collection[str]) -> SafetensorsTensor | None:
        """Returns a tensor, None if there is none. Raises UnsupportedModel for another type."""
        found = self.parts.get(part)
        if found is None:
            return None
        self.taken.add(part)
        if found.dtype not in types:
            raise UnsupportedModel(
                f"tensor {found.name} is of type {found.dtype}; {', '.join(types)} can be read"
            )
        return found

    def matrix(self, part: str, types: Collection[str]) -> SafetensorsTensor:
        """Takes a tensor as `take` does, of two dimensions and not empty."""
        found = self.take(part, types)
        if len(found.shape) != 2 or 0 in found.shape:
            raise UnsupportedModel(
                f"tensor {found.name} has shape {found.shape}; a matrix is needed"
            )
        return found

    def wrong(self, what: str) -> UnsupportedModel:
        return UnsupportedModel(f"the quantised module {self.name} {what}")


class CheckpointFormat(NamedTuple):
    """A way to store a quantised matrix."""

    storage: str
    """WeightScheme.storage."""
    applies: Callable[[Module], bool]
    """Returns whether the module is quantised so."""
    read: Callable[[Module, WeightScheme], CheckpointMatrix | None]
    """Checks the module's tensors, whose data isn't read but for a few numbers. None if they are
    sound, but of another scheme of this storage. Raises UnsupportedModel if they are neither."""


def integers(tensor: SafetensorsTensor) -> np.ndarray:
    """Returns a view on the file's integers in the tensor's shape."""
    return tensor.data.view(_INTEGERS[tensor.dtype]).reshape(tensor.shape)


def float32(tensor: SafetensorsTensor, *part: slice) -> np.ndarray:
    """Reads a part of a tensor of F32, F16 or BF16, or of POWERS, as float32."""
    kind = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}.get(tensor.dtype, "u1")
    found = tensor.data.view(kind).reshape(tensor.shape)[part]
    if tensor.dtype == "BF16":
        return (found.astype(np.uint32) << 16).view(np.float32)
    if tensor.dtype in POWERS:
        return powers_of_two(found)
    return found.astype(np.float32)


def powers_of_two(exponents: np.ndarray) -> np.ndarray:
    """Decodes e8m0 (OCP microscaling formats, 2023): 2^(e - 127), and NaN for 255. float32."""
    powers = np.ldexp(np.float32(1), exponents.astype(np.int32) - 127)
    return np.where(exponents == 255, np.float32(np.nan), powers).astype(np.float32)
