"""What an engine core counts of its steps, read off its metrics port."""

from __future__ import annotations

import time
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

SETTLED = 0.3
"""Seconds before a page is asked for: the port gives the last one again to who asks sooner."""


def parse(page: str) -> dict[str, float]:
    """Since the engine core began: `steps`, and seconds of them: `plan` and `apply` of its own
    work, `compute` of the worker's, `dispatch` that they took beyond that.

    Raises LookupError for a page without these counters.
    """
    found = {
        sample.labels.get("part", "steps"): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name in ("penstock:steps_total", "penstock:step_part_seconds_total")
    }
    try:
        return {name: found[name] for name in ("steps", "plan", "apply", "compute", "dispatch")}
    except KeyError as error:
        raise LookupError(f"the metrics page has no counters of steps: {error}") from None


def read(port: int) -> dict[str, float]:
    time.sleep(SETTLED)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
        return parse(reply.read().decode())
