"""Factors of all experts' matrices together, cut into those of each expert."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from penstock.adapters import AdaptedModule, UnfitAdapter
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
    """Of one expert's matrix."""

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
            raise UnfitAdapter(
                f"the adapter changes {module.module}, which is no part of the model"
            )
        begin, parts = f"{match[1]}mlp.experts.", _PARTS[match[2]]
        sizes = _sizes(module, self._model.experts, begin, parts)
        for expert in range(module.experts):
            for part, rows in zip(parts, self._rows(sizes), strict=True):
                yield ExpertFactors(
                    f"{begin}{expert}.{part}",
                    _down(module, expert),
                    self._up(module, expert, rows),
                )

    def _rows(self, sizes: list[int]) -> list[slice]:
        """Which rows of a parameter's B belong to its parts."""
        if self._model.experts_by_turns and len(sizes) > 1:
            return [slice(first, None, len(sizes)) for first in range(len(sizes))]
        return [slice(first, end) for first, end in pairwise(accumulate(sizes, initial=0))]

    def _up(self, module: AdaptedModule, expert: int, rows: slice) -> StoredTensor:
        factor = module.up
        return StoredTensor(
            factor.name,
            (len(range(factor.shape[0])[rows]), module.rank),
            factor.format,
            factor.data,
            made=partial(self._of_expert, module, expert, rows),
        )

    def _of_expert(
        self, module: AdaptedModule, expert: int, rows: slice, data: np.ndarray
    ) -> np.ndarray:
        ordered = self._ordered.get(module.module)
        if ordered is None:
            while len(self._ordered) >= _KEPT:
                del self._ordered[next(iter(self._ordered))]
            by_column = data.reshape(module.up.shape[0], module.rank, module.experts, -1)
            ordered = np.ascontiguousarray(by_column.transpose(2, 0, 1, 3))
            self._ordered[module.module] = ordered
        return np.ascontiguousarray(ordered[expert, rows]).reshape(-1)


def _down(module: AdaptedModule, expert: int) -> StoredTensor:
    factor = module.down
    data = factor.data.reshape(module.experts, -1)[expert]
    return StoredTensor(factor.name, (module.rank, factor.shape[1]), factor.format, data)


def _sizes(
    module: AdaptedModule,
    known: Mapping[str, tuple[int, int]],
    begin: str,
    parts: tuple[str, ...],
) -> list[int]:
    """Returns the outputs of each part."""
    shapes = [known.get(f"{begin}0.{part}") for part in parts]
    found = [shape for shape in shapes if shape is not None]
    gated = f"{begin}0.gate_proj" in known
    if len(found) < len(parts) or (parts == ("up_proj",) and gated):
        raise UnfitAdapter(f"the adapter changes {module.module}, which is no part of the model")
    count = sum(name.startswith(begin) and name.endswith(f".{parts[0]}") for name in known)
    if count != module.experts:
        raise UnfitAdapter(
            f"the adapter changes {module.module} of {module.experts} experts; the model has "
            f"{count}"
        )
    outputs, inputs = sum(shape[0] for shape in found), found[0][1]
    if (module.up.shape[0], module.down.shape[1]) != (outputs, inputs):
        raise UnfitAdapter(
            f"the adapter changes {module.module} as matrices of {module.up.shape[0]} by "
            f"{module.down.shape[1]}; the model's are {outputs} by {inputs}"
        )
    return [shape[0] for shape in found]
