"""The model of steps on more cores, beside figures made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadtest.more_cores import Machine, PhaseCost

MACHINE = Machine(core_bandwidth=10, node_bandwidth=40, node_cores=4, hop=0.5, far_hop=2.0)


def test_one_core_takes_what_was_measured() -> None:
    phases = [PhaseCost(3.0, 7, 20, waits=True), PhaseCost(2.0, 1, 0, waits=False)]
    assert MACHINE.step_seconds(phases, 1) == 5.0


def test_the_thread_with_most_units_decides() -> None:
    phase = PhaseCost(7.0, 7, 0, waits=False)
    assert MACHINE.step_seconds([phase], 2) == 4.0
    assert MACHINE.step_seconds([phase], 8) == 1.0  # One has none.
    assert MACHINE.step_seconds([replace(phase, units=1)], 8) == 7.0


def test_memory_of_a_node_is_the_end() -> None:
    phase = PhaseCost(80.0, 800, 800, waits=False)
    assert [MACHINE.step_seconds([phase], n) for n in (2, 4, 8)] == [40.0, 20.0, 20.0]


def test_barriers_cost_what_cores_there_are() -> None:
    phase = PhaseCost(8.0, 8, 0, waits=True)
    assert MACHINE.step_seconds([phase], 4) == pytest.approx(2.0 + 4 * 0.5)
    assert MACHINE.step_seconds([phase], 8) == pytest.approx(1.0 + 4 * 0.5 + 4 * 2.0)
