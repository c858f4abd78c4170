"""Biases of zeros, where some of the modules that share a product have none."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from penstock_worker.quantisation.plain import F32
from penstock_worker.weights.stored import StoredTensor

_WEIGHT = re.compile(r"layers\.\d+\.(?P<module>.+)\.weight")


def add_zero_biases(tensors: dict[str, StoredTensor], modules: Sequence[str]) -> None:
    """Adds zeros for the biases that these modules of every layer lack, by our names. Modifies
    `tensors`."""
    for name, stored in list(tensors.items()) if modules else ():
        match = _WEIGHT.fullmatch(name)
        if match is None or match["module"] not in modules or not stored.shape:
            continue
        bias, rows = f"{name.removesuffix('weight')}bias", stored.shape[0]
        zeros = np.zeros(rows, np.float32).view(np.uint8)
        tensors.setdefault(bias, StoredTensor(bias, (rows,), F32.name, zeros))
