"""What an engine core counts of its steps, read off its metrics port."""

from __future__ import annotations

import re
import time
import urllib.request
from dataclasses import dataclass

PART = re.compile(r'penstock:step_part_seconds_total\{[^}]*part="(\w+)"[^}]*\} (\S+)')
STEPS = re.compile(r"^penstock:steps_total(?:\{[^}]*\})? (\S+)", re.MULTILINE)
SETTLED = 0.3
"""Seconds before a page is asked for: the port gives the last one again to who asks sooner."""


@dataclass(frozen=True)
class StepTimes:
    """Steps since the engine core began, and seconds of them."""

    steps: int
    plan: float  # of its own work
    apply: float  # of its own work
    compute: float  # of the worker's
    dispatch: float  # that steps took beyond that

    def since(self, before: StepTimes) -> StepTimes:
        return StepTimes(
            self.steps - before.steps,
            self.plan - before.plan,
            self.apply - before.apply,
            self.compute - before.compute,
            self.dispatch - before.dispatch,
        )


def parse(page: str) -> StepTimes:
    """Raises LookupError for a page without these counters."""
    parts = {name: float(value) for name, value in PART.findall(page)}
    steps = STEPS.search(page)
    if steps is None or not {"plan", "apply", "compute", "dispatch"} <= parts.keys():
        raise LookupError("the metrics page has no counters of steps")
    times = {name: parts[name] for name in ("plan", "apply", "compute", "dispatch")}
    return StepTimes(int(float(steps[1])), **times)


def read(port: int) -> StepTimes:
    time.sleep(SETTLED)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
        return parse(reply.read().decode())
