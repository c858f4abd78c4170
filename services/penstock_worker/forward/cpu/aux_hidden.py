"""Phases that take residuals out of a program's steps."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from penstock.model.config import ModelConfig
from penstock_kernels.cpu.program import Buffer, Phase, PhaseKind
from penstock_worker.models.aux_hidden import AuxHidden


class CPUAuxHidden:
    """Takes residuals out of a program that computes one step at a time."""

    def __init__(self, aux_hidden: AuxHidden, config: ModelConfig) -> None:
        """`config`: of the model."""
        self._aux_hidden = aux_hidden
        mixed = config.hyper_connections
        self._source = Buffer.RESIDUAL if mixed is None else Buffer.STREAMS
        self._width = config.hidden_size * (1 if mixed is None else mixed.count)
        self._found: dict[int, np.ndarray] = {}

    def behind(self, layers: int) -> Iterator[Phase]:
        """What follows so many layers."""
        if layers in self._aux_hidden.behind:
            yield Phase(
                kind=PhaseKind.EXCHANGE,
                source=self._source,
                width=self._width,
                part=True,
                exchange=partial(self._take, layers),
                alone=True,
            )

    def keep(self) -> None:
        """A step is done."""
        self._aux_hidden.keep(
            {layers: torch.from_numpy(rows) for layers, rows in self._found.items()}
        )
        self._found = {}

    def _take(self, layers: int, values: np.ndarray) -> None:
        self._found[layers] = np.array(values)
