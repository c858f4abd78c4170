"""A backend: the reference's kernels, which also say how large the logits become."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from penstock.model.prepared_model import PreparedModel
from penstock.process import logs
from penstock.protocol.to_worker import Setup
from penstock_worker.forward import reference
from penstock_worker.forward.interface import Batch, Forward, Recipe
from penstock_worker.parallel.ranks import ALONE, Ranks

log = logs.get(__name__)


class WatchedForward:
    """In front of a Forward, which does everything else."""

    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        self._largest = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._forward, name)

    def logits(self, batch: Batch, rows: np.ndarray) -> Tensor:
        found = self._forward.logits(batch, rows)
        largest = float(found.abs().max()) if len(rows) else 0.0
        if largest > self._largest:
            self._largest = largest
            log.info("the largest logit so far", value=largest)
        return found


def recipe(prepared: PreparedModel, setup: Setup, threads: int, ranks: Ranks = ALONE) -> Recipe:
    """How the model will be computed. Raises `Unable` where it can't be."""
    made = reference.recipe(prepared, setup, threads, ranks)

    def build() -> Callable[[int], Forward]:
        forward_of = made.build()
        return lambda blocks: WatchedForward(forward_of(blocks))

    return replace(made, build=build)
