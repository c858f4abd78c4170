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
        "penstock:preparers", f"Processes that prepare large bodies. {OURS}", labels=_LABEL
    )
    processes.add_metric(label, preparers.count)
    yield processes
    ended = CounterMetricFamily(
        "penstock:preparations",
        "Large bodies that a process of their own prepared, by outcome: done, also with an error"
        " that names what is wrong; too_dear: ended by --max-body-seconds; crashed; died; frozen."
        f" {OURS}",
        labels=[*_LABEL, "outcome"],
    )
    for outcome, count in preparers.outcomes.items():
        ended.add_metric([*label, outcome], count)
    yield ended
