"""What an adapter is, whatever its files' format."""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec
import numpy as np

from penstock.errors import InvalidRequest

MAX_RANK = 1024
"""The highest rank that is read at all; a server's own bound is lower."""
MAX_MODULES = 1 << 16
"""Most matrices that an adapter changes: each expert has its own."""

_DIGESTED = b"penstock adapter 1"
_MOST_SAID = 500
"""Characters of a message: names of tensors have any length."""


class UnfitAdapter(InvalidRequest):
    """An adapter that can't be used. The message names no folder of this machine."""

    def __init__(self, message: str) -> None:
        cut = message if len(message) <= _MOST_SAID else f"{message[:_MOST_SAID]}…"
        super().__init__(cut, code="invalid_adapter")


class StoredFactor(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One of a module's two matrices (A or B), whose data is still in the file."""

    name: str
    """The module's name in the file, for messages."""
    shape: tuple[int, int]
    """Rows and columns."""
    format: str
    """F32, F16, BF16, or of a GGUF file another of its types."""
    data: np.ndarray
    """uint8 [bytes], a read-only view on the mapping."""


class WholeTensor(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A tensor that stands in the place of the model's own, its data still in the file."""

    name: str
    """The file's name of the model's tensor: `lm_head.weight`."""
    shape: tuple[int, ...]
    """Shape of a matrix, or of a vector."""
    format: str
    """F32, F16 or BF16."""
    data: np.ndarray
    """uint8 [bytes], a read-only view on the mapping."""


class AdaptedModule(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What an adapter adds to one module's product: scale * up (down x).

    An embedding is the product with a token's unit vector: it has as many inputs as tokens.
    """

    module: str
    """The file's name of the module: `model.layers.0.self_attn.q_proj` in a PEFT folder,
    `blk.0.attn_q` in a GGUF file."""
    scale: float
    down: StoredFactor
    """A, [rank, inputs]."""
    up: StoredFactor
    """B, [outputs, rank]."""
    magnitude: StoredFactor | None = None
    """[outputs, 1], of DoRA: the lengths that the rows of W + scale * B A get."""
    experts: int = 0
    """Experts of a parameter that has the matrices of so many; 0: it has one matrix. With experts,
    A is [experts * rank, inputs], and B [outputs, rank * experts]: an expert's rows of A are
    neighbours, its columns of B are so many apart."""

    @property
    def rank(self) -> int:
        return self.down.shape[0] // max(1, self.experts)

    @property
    def matrices(self) -> int:
        """How many it changes."""
        return max(1, self.experts)


class Adapter(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """An adapter's files, of which headers are read, and data are mapped."""

    format: Literal["peft", "gguf"]
    modules: tuple[AdaptedModule, ...]
    """Adapted modules, sorted by name."""
    base: str = ""
    """Name of the model that it was made for, as the files say it; empty if they don't."""
    architecture: str = ""
    """`general.architecture` of a GGUF file; empty in a PEFT folder."""
    whole: tuple[WholeTensor, ...] = ()
    """Whole tensors, sorted by name."""

    @property
    def rank(self) -> int:
        """The highest of all modules."""
        return max((each.rank for each in self.modules), default=0)

    def digest(self) -> str:
        """Returns 64 hexadecimal digits (SHA-256) that stand for all that the adapter does to a
        model: names, scales and numbers. Reads all data. Neither paths nor settings that change
        nothing are part of it."""
        found = hashlib.sha256(_DIGESTED)

        def add(part: bytes) -> None:
            found.update(len(part).to_bytes(8, "little") + part)

        def add_data(data: np.ndarray) -> None:
            found.update(data.nbytes.to_bytes(8, "little"))
            found.update(data.data)

        add(self.format.encode())
        add(self.architecture.encode())
        for each in self.modules:
            add(each.module.encode())
            add(each.scale.hex().encode())
            if each.experts:
                add(f"of {each.experts} experts".encode())
            for factor in (each.down, each.up, *filter(None, (each.magnitude,))):
                add(f"{factor.format} {factor.shape[0]} {factor.shape[1]}".encode())
                add_data(factor.data)
        for tensor in self.whole:
            add(f"{tensor.name} {tensor.format} {tensor.shape}".encode())
            add_data(tensor.data)
        return found.hexdigest()


def check_number(modules: int) -> None:
    """Raises UnfitAdapter for an adapter that changes nothing, or too much."""
    if not modules:
        raise UnfitAdapter("the adapter changes no module: it has no pair of factors")
    if modules > MAX_MODULES:
        raise UnfitAdapter(
            f"the adapter changes {modules} modules; at most {MAX_MODULES} are allowed"
        )


def checked_modules(modules: list[AdaptedModule]) -> tuple[AdaptedModule, ...]:
    """Returns them by name. Raises UnfitAdapter for factors that don't belong together."""
    for each in modules:
        if each.down.shape[0] != each.up.shape[1]:
            raise UnfitAdapter(
                f"the factors of {each.module} don't fit together: {each.down.name} has shape "
                f"{each.down.shape}, {each.up.name} {each.up.shape}"
            )
        if each.experts and each.down.shape[0] % each.experts:
            raise UnfitAdapter(
                f"{each.down.name} has {each.down.shape[0]} rows, which {each.experts} experts "
                "can't have alike"
            )
        if not 1 <= each.rank <= MAX_RANK:
            raise UnfitAdapter(
                f"{each.module} has rank {each.rank}; ranks from 1 to {MAX_RANK} are read"
            )
        if each.magnitude is not None and each.magnitude.shape[0] != each.up.shape[0]:
            raise UnfitAdapter(
                f"{each.magnitude.name} has {each.magnitude.shape[0]} numbers for "
                f"{each.up.shape[0]} outputs"
            )
    return tuple(sorted(modules, key=lambda each: each.module))
