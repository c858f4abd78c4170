"""What is measured in the time that there is: rows are left out, the longest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from loadtest.machine.tasks import Task
from loadtest.peers.library.systems import System
from loadtest.report import say, table
from loadtest.roofline.cost import ModelCost
from loadtest.roofline.probe import Limits

REACHED = {
    "penstock": (0.8, 0.5),
    "penstock_without_drafts": (0.8, 0.5),
    "llamacpp": (0.7, 0.15),
    "ik_llamacpp": (0.7, 0.3),
    "openvino": (0.6, 0.3),
}
"""For the estimate: which shares of the machine's bandwidth and int8 operations a system reaches,
as they did on an EPYC of the fourth generation."""
_LOADING = 4.0
"""Seconds that a system's start takes, and its warm-up, before anything is read."""
_LOADED_BYTES_PER_S = 0.4e9


@dataclass
class Plan:
    """A model's rows.

    missing: why a system isn't there.  left_out: seconds of a round that a row would have taken.
    """

    title: str
    path: Path
    cost: ModelCost
    tasks: list[Task]
    systems: list[System]
    limits: Limits
    missing: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, float] = field(default_factory=dict)

    def round_seconds(self, task: Task) -> float:
        """Seconds that one round of the task takes on all systems together."""
        return sum(self._cell_seconds(task, system.name) for system in self.systems)

    def start_seconds(self) -> float:
        """Seconds until all systems are loaded and warm."""
        each = _LOADING + self.path.stat().st_size / _LOADED_BYTES_PER_S
        return each * len(self.systems) if self.tasks else 0.0

    def seconds(self, rounds: int) -> float:
        return self.start_seconds() + rounds * sum(map(self.round_seconds, self.tasks))

    def leave_out(self, task: Task) -> None:
        self.left_out[task.name] = self.round_seconds(task)
        self.tasks.remove(task)

    def _cell_seconds(self, task: Task, system: str) -> float:
        read, computed = REACHED.get(system, (0.5, 0.1))
        peak = self.limits.ops_per_s
        limits = replace(
            self.limits,
            read_bytes_per_s=read * self.limits.read_bytes_per_s,
            int8_ops_per_s=peak and computed * peak,
        )
        return task.seconds(self.cost, limits)


def fit(plans: Sequence[Plan], rounds: int, seconds: float) -> None:
    """Leaves rows out until the rest takes so long; 0: all stay."""
    while seconds and sum(plan.seconds(rounds) for plan in plans) > seconds:
        rows = [(plan.round_seconds(task), plan, task) for plan in plans for task in plan.tasks]
        if not rows:
            return
        _, plan, task = max(rows, key=lambda row: row[0])
        plan.leave_out(task)


def tell(plans: Sequence[Plan], rounds: int) -> None:
    """The estimate, on stderr."""
    rows = [
        {
            "title": plan.title,
            "rows": len(plan.tasks),
            "seconds": plan.seconds(rounds),
            "left_out": "; ".join(plan.left_out) or "nothing",
        }
        for plan in plans
    ]
    columns = {
        "model": "{title}",
        "rows": "{rows}",
        "seconds": "{seconds:,.0f}",
        "left out": "{left_out}",
    }
    total = sum(plan.seconds(rounds) for plan in plans)
    say(f"{table(columns, rows)}\nabout {total / 60:.0f} minutes for {rounds} round(s)")
