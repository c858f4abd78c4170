"""An exchange with other ranks that isn't made is never taken for one that was."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from penstock_kernels.cpu.exchanges import ExchangeInterrupted, Exchanges
from penstock_kernels.cpu.matrix import pack
from penstock_kernels.cpu.operands import Experts
from penstock_kernels.cpu.program import Exchange, Phase, PhaseKind

VALUES = np.zeros((2, 32), dtype=np.float32)


def phase(exchange: Exchange) -> Phase:
    return Phase(kind=PhaseKind.EXCHANGE, part=True, width=20, exchange=exchange)


def fill(values: np.ndarray) -> None:
    values += 1


@pytest.fixture
def exchanges() -> Exchanges:
    VALUES[:] = 0
    made = Exchanges([Phase(kind=PhaseKind.EMBED), phase(fill), phase(fill)])
    made.begin()
    return made


def call(exchanges: Exchanges, number: int) -> int:
    found: int = exchanges.function(number, VALUES.ctypes.data, 2, 32, None)
    return found


def test_all_are_made(exchanges: Exchanges) -> None:
    assert [call(exchanges, 1), call(exchanges, 2)] == [0, 0]
    exchanges.check(cancelled=False)
    assert (VALUES[:, :20] == 2).all()
    assert (VALUES[:, 20:] == 0).all()


def test_results_come_with_the_places_of_each_expert() -> None:
    VALUES[:] = 0
    seen: list[list[int]] = []

    def complete(values: np.ndarray, first: np.ndarray) -> None:
        seen.append(first.tolist())
        fill(values)

    matrices = tuple(pack("F32", np.zeros(4096, np.uint8), (32, 32)) for _ in range(3))
    experts = Experts(active=1, ups=matrices, downs=matrices)
    results = replace(phase(fill), exchange=None, exchange_results=complete, experts=experts)
    made = Exchanges([results])
    made.begin()
    first = np.array([0, 1, 1, 2], dtype=np.int32)
    assert made.function(0, VALUES.ctypes.data, 2, 32, first.ctypes.data) == 0
    made.check(cancelled=False)
    assert seen == [[0, 1, 1, 2]]
    assert (VALUES[:, :20] == 1).all()
    assert (VALUES[:, 20:] == 0).all()


def test_the_first_was_prevented(exchanges: Exchanges) -> None:
    """A signal may come while the library computes: its handler raises before a callback's first
    line, the callback's value is any, and the step may go on."""
    assert call(exchanges, 2) == 1
    assert (VALUES == 0).all()
    with pytest.raises(ExchangeInterrupted):
        exchanges.check(cancelled=False)


def test_the_last_was_prevented(exchanges: Exchanges) -> None:
    assert call(exchanges, 1) == 0
    with pytest.raises(ExchangeInterrupted):
        exchanges.check(cancelled=False)


def test_a_cancelled_step_makes_no_more(exchanges: Exchanges) -> None:
    assert call(exchanges, 1) == 0
    exchanges.check(cancelled=True)
    exchanges.begin()
    assert call(exchanges, 1) == 0, "the next step begins with the first again"


def test_what_one_raises_comes_out() -> None:
    def broken(values: np.ndarray) -> None:
        raise LookupError("a rank is gone")

    exchanges = Exchanges([phase(broken)])
    exchanges.begin()
    assert call(exchanges, 0) == 1
    with pytest.raises(LookupError, match="a rank is gone"):
        exchanges.check(cancelled=False)
