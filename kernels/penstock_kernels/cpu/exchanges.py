"""Phases of a program that call back, because other ranks have a part of what they complete."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from penstock_kernels.cpu.program import Exchange, Phase, PhaseKind
from penstock_kernels.cpu.structs import PkExchange


class ExchangeInterrupted(BaseException):
    """A signal's handler has raised where no exception can be caught: before an exchange began. The
    step is void, and other ranks are one exchange ahead."""


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
        self._order = list(self._calls)
        self._done = 0
        """Exchanges of this step."""
        self._error: BaseException | None = None
        self.function = PkExchange(self._run) if self._calls else PkExchange()
        """Null where no phase needs it."""

    def begin(self) -> None:
        """A step begins."""
        self._done = 0

    def check(self, *, cancelled: bool) -> None:
        """Raises what an exchange of the step has raised, and ExchangeInterrupted if one is missing
        in a step that wasn't cancelled."""
        error, self._error = self._error, None
        if error is not None:
            raise error
        if self._done < len(self._order) and not cancelled:
            raise ExchangeInterrupted

    def _run(self, number: int, address: int, rows: int, stride: int) -> int:
        # Python runs handlers of signals before the first line, too; what they raise is lost there,
        # and the value returned is any. So every exchange looks whether the last one was made.
        try:
            if self._order[self._done] != number:
                return 1
            exchange, width = self._calls[number]
            floats = (ctypes.c_float * (rows * stride)).from_address(address)
            exchange(np.ctypeslib.as_array(floats).reshape(rows, stride)[:, :width])
            self._done += 1
            return 0
        except BaseException as error:  # None crosses C++; `check` raises it.
            self._error = error
            return 1
