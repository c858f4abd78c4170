"""Phases of a program that call back, because other ranks have a part of what they complete."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from penstock_kernels.cpu.program import Exchange, Phase, PhaseKind, ResultsExchange
from penstock_kernels.cpu.structs import PkExchange


class ExchangeInterrupted(BaseException):
    """A signal's handler has raised where no exception can be caught: before an exchange began. The
    step is void, and other ranks are one exchange ahead."""


KEPT_TABLES = 1024
"""Views of memory that is exchanged."""


class Exchanges:
    """The function that the library calls for EXCHANGE phases."""

    def __init__(self, phases: Sequence[Phase]) -> None:
        """Raises ValueError for a phase that says not what to call."""
        self._calls: dict[int, tuple[Exchange, int]] = {}
        self._of_results: dict[int, tuple[ResultsExchange, int, int]] = {}
        for number, phase in enumerate(phases):
            if phase.kind is not PhaseKind.EXCHANGE:
                continue
            if phase.exchange is not None:
                self._calls[number] = phase.exchange, phase.width
            elif phase.exchange_results is not None and phase.experts is not None:
                counted = len(phase.experts.ups) + 1
                self._of_results[number] = phase.exchange_results, phase.width, counted
            else:
                raise ValueError(f"phase {number} exchanges something with nobody")
        self._order = sorted(self._calls.keys() | self._of_results.keys())
        self._tables: dict[tuple[int, int, int, int], np.ndarray] = {}
        self._done = 0
        """Exchanges of this step."""
        self._error: BaseException | None = None
        self.function = PkExchange(self._run) if self._order else PkExchange()
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

    def _table(self, address: int, rows: int, stride: int, width: int) -> np.ndarray:
        """Returns what lies at an address, [rows, width] float32. Tables are kept, as making one
        takes as long as the exchange of a row; they own nothing of what they show."""
        key = address, rows, stride, width
        found = self._tables.get(key)
        if found is None:
            floats = (ctypes.c_float * (rows * stride)).from_address(address)
            found = np.ctypeslib.as_array(floats).reshape(rows, stride)[:, :width]
            if len(self._tables) >= KEPT_TABLES:
                self._tables.clear()
            self._tables[key] = found
        return found

    def _complete(self, number: int, address: int, rows: int, stride: int, firsts: int) -> None:
        if number in self._calls:
            exchange, width = self._calls[number]
            exchange(self._table(address, rows, stride, width))
            return
        of_results, width, counted = self._of_results[number]
        first = np.ctypeslib.as_array((ctypes.c_int32 * counted).from_address(firsts))
        of_results(self._table(address, rows, stride, width), first)

    def _run(self, number: int, address: int, rows: int, stride: int, firsts: int) -> int:
        # Python runs handlers of signals before the first line, too; what they raise is lost there,
        # and the value returned is any. So every exchange looks whether the last one was made.
        try:
            if self._order[self._done] != number:
                return 1
            self._complete(number, address, rows, stride, firsts)
            self._done += 1
            return 0
        except BaseException as error:  # None crosses C++; `check` raises it.
            self._error = error
            return 1
