"""Metrics of the processes that prepare large bodies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from penstock_gateway.metrics.engines import OURS

if TYPE_CHECKING:
    from penstock_gateway.preparing.pool import Preparers

_LABEL = ["model_name"]


def preparer_families(preparers: Preparers, label: list[str]) -> Iterator[Metric]:
    """label: the one model's name, or an empty one."""
    processes = GaugeMetricFamily(
        "penstock:preparers",
        "Processes that prepare large bodies: busy, also while they wait for a picture, a stored"
        f" response, a model or vectors; idle. {OURS}",
        labels=[*_LABEL, "state"],
    )
    processes.add_metric([*label, "busy"], preparers.busy)
    processes.add_metric([*label, "idle"], preparers.count - preparers.busy)
    yield processes
    waiting = GaugeMetricFamily(
        "penstock:waiting_bodies",
        f"Large bodies that wait for their tenant's turn, or for such a process. {OURS}",
        labels=_LABEL,
    )
    waiting.add_metric(label, preparers.waiting)
    yield waiting
    ended = CounterMetricFamily(
        "penstock:preparations",
        "Large bodies that a process of their own prepared, by outcome: done, also with an error"
        " that names what is wrong; too_dear: ended by --max-body-seconds; out_of_memory: by"
        " --max-body-memory-mib; crashed; died; frozen."
        f" {OURS}",
        labels=[*_LABEL, "outcome"],
    )
    for outcome, count in preparers.outcomes.items():
        ended.add_metric([*label, outcome], count)
    yield ended
