"""Metrics of the processes that prepare large bodies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from penstock.metrics.families import Families, keyed
from penstock_gateway.metrics.engines import OURS

if TYPE_CHECKING:
    from penstock_gateway.preparing.pool import Preparers


def preparer_families(preparers: Preparers, families: Families) -> Iterator[Metric]:
    """Their counts, and what waits for them."""
    yield families.gauges(
        "penstock:preparers",
        "Processes that prepare large bodies: busy, also while they wait for a picture, a stored"
        f" response, a model or vectors; idle. {OURS}",
        ["state"],
        keyed({"busy": preparers.busy, "idle": preparers.count - preparers.busy}),
    )
    yield families.gauge(
        "penstock:waiting_bodies",
        f"Large bodies that wait for their tenant's turn, or for such a process. {OURS}",
        preparers.waiting,
    )
    yield families.counters(
        "penstock:preparations",
        "Large bodies that a process of their own prepared, by outcome: done, also with an error"
        " that names what is wrong; too_dear: ended by --max-body-seconds; out_of_memory: by"
        " --max-body-memory-mib; crashed; died; frozen."
        f" {OURS}",
        ["outcome"],
        keyed(preparers.outcomes),
    )
