"""Phases of a program that call back, because other ranks have a part of what they complete."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from penstock_kernels.cpu.program import Exchange, Phase, PhaseKind
from penstock_kernels.cpu.structs import PkExchange


class Exchanges:
    """The function that the library calls for EXCHANGE phases."""

    def __init__(self, phases: Sequence[Phase]) -> None:
        """Raises ValueError for a phase that says not what to call."""
        self._calls: dict[int, tuple[Exchange, int]] = {}
        for number, phase in enumerate(phases):
            if phase.kind is not PhaseKind.EXCHANGE:
                continue
            if phase.exchange is None:
                raise ValueError(f"phase {number} exchanges something with nobody")
            self._calls[number] = phase.exchange, phase.width
        self._error: BaseException | None = None
        self.function = PkExchange(self._run) if self._calls else PkExchange()
        """Null where no phase needs it."""

    def check(self) -> None:
        """Raises what an exchange of the last step has raised."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, number: int, address: int, rows: int, stride: int) -> int:
        try:
            exchange, width = self._calls[number]
            floats = (ctypes.c_float * (rows * stride)).from_address(address)
            exchange(np.ctypeslib.as_array(floats).reshape(rows, stride)[:, :width])
        except BaseException as error:  # None crosses C++; `check` raises it.
            self._error = error
            return 1
        return 0
