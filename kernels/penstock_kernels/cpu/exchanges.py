"""Phases of a program that call back, because other ranks have a part of what they complete."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from penstock_kernels.cpu.program import Phase
from penstock_kernels.cpu.structs import PkExchange


class Exchanges:
    """The function that the library calls for EXCHANGE phases."""

    def __init__(self, phases: Sequence[Phase]) -> None:
        self._phases = phases
        self._error: BaseException | None = None
        self.function = PkExchange()  # Null.
        if any(phase.exchange is not None for phase in phases):
            self.function = PkExchange(self._run)

    def check(self) -> None:
        """Raises what an exchange of the last step has raised."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, number: int, address: int, rows: int, stride: int) -> int:
        phase = self._phases[number]
        try:
            if phase.exchange is not None:
                floats = (ctypes.c_float * (rows * stride)).from_address(address)
                values = np.ctypeslib.as_array(floats).reshape(rows, stride)
                phase.exchange(values[:, : phase.width])
        except BaseException as error:  # None crosses C++; `check` raises it.
            self._error = error
            return 1
        return 0
