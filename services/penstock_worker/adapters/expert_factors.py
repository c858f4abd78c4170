"""Factors of all experts' matrices together, cut into those of each expert."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from penstock.adapters import AdaptedModule, StoredFactor, UnfitAdapter
from penstock_worker.adapters.models import AdaptableModel
from penstock_worker.weights.stored import StoredTensor

_PARAMETER = re.compile(r"(?:.*\.)?(layers\.\d+\.)\w+\.experts\.(\w+)")
_PARTS = {
    "gate_up_proj": ("gate_proj", "up_proj"),
    "up_proj": ("up_proj",),
    "down_proj": ("down_proj",),
}
_KEPT = 2
"""Parameters whose B is kept in the order of experts: a layer's, which are read by turns."""


class ExpertFactors(NamedTuple):
    """Factors of one expert's matrix."""

    name: str
    """Our name of it."""
    down: StoredTensor
    """A, [rank, inputs]."""
    up: StoredTensor
    """B, [outputs, rank]."""


class ExpertCuts:
    """Cuts parameters' factors. B is put into the order of experts as a whole when the first of
    them is read, as each has numbers all over it."""

    def __init__(self, model: AdaptableModel) -> None:
        self._model = model
        self._ordered: dict[str, np.ndarray] = {}

    def cut(self, module: AdaptedModule) -> Iterator[ExpertFactors]:
        """Yields the factors of each expert's matrices. Raises UnfitAdapter for a parameter that
        the model doesn't have, or not of this shape."""
        match = _PARAMETER.fullmatch(module.module)
        if match is None or match[2] not in _PARTS:
            raise UnfitAdapter(f"the adapter changes {module.module}, which the model doesn't have")
        begin, parts = f"{match[1]}mlp.experts.", _PARTS[match[2]]
        sizes = _sizes(module, self._model, begin, parts)
        factors = self._turned if self._model.experts_turned else self._factors
        for expert in range(module.experts):
            for part, rows in zip(parts, self._rows(sizes), strict=True):
                yield ExpertFactors(f"{begin}{expert}.{part}", *factors(module, expert, rows))

    def _rows(self, sizes: list[int]) -> list[slice]:
        """Which outputs of a parameter belong to its parts."""
        if self._model.experts_by_turns and len(sizes) > 1:
            return [slice(first, None, len(sizes)) for first in range(len(sizes))]
        return [slice(first, end) for first, end in pairwise(accumulate(sizes, initial=0))]

    def _factors(
        self, module: AdaptedModule, expert: int, rows: slice
    ) -> tuple[StoredTensor, StoredTensor]:
        down = replace(
            _stored(module.down, (module.rank, module.down.shape[1])),
            data=module.down.data.reshape(module.experts, -1)[expert],
        )
        shape = (len(range(module.up.shape[0])[rows]), module.rank)
        up = _stored(module.up, shape, lambda data: self._by_expert(module, data)[expert, rows])
        return down, up

    def _turned(
        self, module: AdaptedModule, expert: int, rows: slice
    ) -> tuple[StoredTensor, StoredTensor]:
        """Returns (A, B) of an expert whose parameter has transposed matrices: the two are
        transposed, and change places."""

        def columns(data: np.ndarray) -> np.ndarray:
            by_row = data.reshape(module.experts, module.rank, module.down.shape[1], -1)
            return by_row[expert, :, rows].swapaxes(0, 1)

        shape = (len(range(module.down.shape[1])[rows]), module.rank)
        down = _stored(
            module.up,
            (module.rank, module.up.shape[0]),
            lambda data: self._by_expert(module, data)[expert].swapaxes(0, 1),
        )
        return down, _stored(module.down, shape, columns)

    def _by_expert(self, module: AdaptedModule, data: np.ndarray) -> np.ndarray:
        """Returns B, [experts, outputs, rank, bytes]."""
        ordered = self._ordered.get(module.module)
        if ordered is None:
            while len(self._ordered) >= _KEPT:
                del self._ordered[next(iter(self._ordered))]
            by_column = data.reshape(module.up.shape[0], module.rank, module.experts, -1)
            ordered = np.ascontiguousarray(by_column.transpose(2, 0, 1, 3))
            self._ordered[module.module] = ordered
        return ordered


def _stored(
    factor: StoredFactor,
    shape: tuple[int, int],
    part: Callable[[np.ndarray], np.ndarray] | None = None,
) -> StoredTensor:
    """`part`: what of the factor's data it is, [rows, columns, bytes]."""
    made = None if part is None else lambda data: np.ascontiguousarray(part(data)).reshape(-1)
    return StoredTensor(factor.name, shape, factor.format, factor.data, made=made)


def _sizes(
    module: AdaptedModule,
    model: AdaptableModel,
    begin: str,
    parts: tuple[str, ...],
) -> list[int]:
    """Returns the outputs of each part."""
    known = model.experts
    shapes = [known.get(f"{begin}0.{part}") for part in parts]
    found = [shape for shape in shapes if shape is not None]
    gated = f"{begin}0.gate_proj" in known
    if len(found) < len(parts) or (parts == ("up_proj",) and gated):
        raise UnfitAdapter(f"the adapter changes {module.module}, which the model doesn't have")
    count = sum(name.startswith(begin) and name.endswith(f".{parts[0]}") for name in known)
    if count != module.experts:
        raise UnfitAdapter(
            f"the adapter changes {module.module} of {module.experts} experts; the model has "
            f"{count}"
        )
    outputs, inputs = sum(shape[0] for shape in found), found[0][1]
    wanted = (inputs, outputs) if model.experts_turned else (outputs, inputs)
    if (module.up.shape[0], module.down.shape[1]) != wanted:
        raise UnfitAdapter(
            f"the adapter changes {module.module} as matrices of {module.up.shape[0]} by "
            f"{module.down.shape[1]}; the model's are {wanted[0]} by {wanted[1]}"
        )
    return [shape[0] for shape in found]
