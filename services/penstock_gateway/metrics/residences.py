"""Models that are started on demand, as Prometheus' families."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric

from penstock_gateway.metrics.engines import OURS

if TYPE_CHECKING:
    from penstock_gateway.models.backend import ModelBackend

_LABEL = ["model_name"]


def residence_families(backend: ModelBackend, label: list[str]) -> Iterator[Metric]:
    """Metrics of a model that is started and ended on demand; none for others. label: the model's
    name."""
    residence = backend.residence
    if residence is None:
        return
    loaded = GaugeMetricFamily(
        "penstock:model_loaded", "1 if the model is loaded, 0 otherwise.", labels=_LABEL
    )
    loaded.add_metric(label, float(backend.unready_reason() is None))
    yield loaded
    waiting = GaugeMetricFamily(
        "penstock:model_waiting_requests",
        f"Requests waiting for the model to load. {OURS}",
        labels=_LABEL,
    )
    waiting.add_metric(label, residence.waiting)
    yield waiting
    waits = HistogramMetricFamily(
        "penstock:model_wait_seconds",
        f"Time that requests waited for the model to load. {OURS}",
        labels=_LABEL,
    )
    waits.add_metric(label, residence.waits.cumulative(), residence.waits.total)
    yield waits
