"""What steps make is freed by its reference counts, so that the collector may look seldom."""

from __future__ import annotations

import gc
from collections import deque

import pytest

from loadtest.engine_core import WORKER, answer, decoding_core, plans_of


@pytest.mark.timeout(60)
def test_steps_leave_no_cycles() -> None:
    core = decoding_core(1000, 8, 64)
    waiting = deque(plans_of(core.step(0.0)))
    gc.collect()
    gc.disable()
    try:
        for _ in range(40):
            core.worker_received(WORKER, answer(waiting.popleft()), 0.0)
            waiting += plans_of(core.step(0.0))
        assert gc.collect() == 0
    finally:
        gc.enable()
