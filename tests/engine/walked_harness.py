"""Engine cores for random histories, with drawn settings."""

from __future__ import annotations

import random
import typing
from typing import Any, Protocol

from hypothesis import strategies as st

from penstock.config.settings import SchedulingPolicy
from tests.engine.harness import Harness


class Choices(Protocol):
    """Where randomness comes from: Hypothesis, or a seeded generator."""

    def whole(self, low: int, high: int) -> int: ...


class Drawn:
    """Choices that Hypothesis makes, and shrinks."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def whole(self, low: int, high: int) -> int:
        return self._data.draw(st.integers(low, high))


class Seeded:
    """Choices that are the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def whole(self, low: int, high: int) -> int:
        return self._random.randint(low, high)


POLICIES = typing.get_args(SchedulingPolicy)
FEW = (
    "submit",
    "step",
    "abort",
    "connect",
    "disconnect",
    "worker",
    "kill",
    "wait",
    "resume",
)
"""Operations of walks that are about something else."""
TENANTS = "a:weight=3;b:max_requests=6,highest_priority=-1;*:highest_priority=-2"


def make_harness(choose: Choices, policy: str | None = None) -> Harness:
    """Small limits, so that every one of them is met."""
    return Harness(**drawn_options(choose, policy))


def drawn_options(choose: Choices, policy: str | None = None) -> dict[str, Any]:
    """Options of a Harness, drawn."""
    return {
        "scheduling_policy": policy or POLICIES[choose.whole(0, len(POLICIES) - 1)],
        "tenants": TENANTS,
        "max_model_len": choose.whole(8, 48),
        "block_size": choose.whole(1, 5),
        "max_num_seqs": choose.whole(1, 6),
        "max_num_batched_tokens": choose.whole(1, 24),
        "max_waiting_requests": choose.whole(2, 12),
        "max_waiting_tokens": choose.whole(20, 300),
        "max_steps_in_flight": choose.whole(1, 3),
        "prefix_caching": choose.whole(0, 3) > 0,
        "preemption_mode": ("auto", "recompute", "swap")[choose.whole(0, 2)],
        "max_grammars": choose.whole(1, 6),
    }
