"""Files, batches and kept responses, as Prometheus' families."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from penstock_gateway.metrics.engines import OURS

if TYPE_CHECKING:
    from penstock_gateway.service import Service

_LABEL = ["model_name"]
SHARED = "Read from the database; every process that uses it reports the same value."
STATUSES = ("validating", "in_progress", "finalizing", "cancelling")
"""States of batches that are shown although there is none."""


def storage_families(service: Service, label: list[str]) -> Iterator[Metric]:
    """Metrics of what is stored; none if nothing is. label: the model's name, or an empty one."""
    if service.store is not None:
        yield from _stock(service, label)
        uploads = GaugeMetricFamily(
            "penstock:open_uploads", f"Uploads in progress. {OURS}", labels=_LABEL
        )
        uploads.add_metric(label, service.uploads.open)
        yield uploads
    if service.lines is not None:
        yield from _lines(service, label)


def _stock(service: Service, label: list[str]) -> Iterator[Metric]:
    """What the last look found; the endpoint has it look before it collects."""
    stock = None if service.store is None else service.store.stock.latest
    if stock is None:
        return
    batches = GaugeMetricFamily(
        "penstock:batches", f"Stored batches, by status. {SHARED}", labels=[*_LABEL, "status"]
    )
    for status, count in (dict.fromkeys(STATUSES, 0) | stock.batches).items():
        batches.add_metric([*label, status], count)
    yield batches
    for name, words, value in (
        ("batch_waiting_lines", "Lines of batches not yet answered.", stock.waiting_lines),
        ("stored_files", "Stored files.", stock.files),
        ("stored_file_bytes", "Bytes of stored files.", stock.file_bytes),
        ("stored_responses", "Stored responses.", stock.responses),
        ("stored_response_bytes", "Bytes of stored responses.", stock.response_bytes),
    ):
        gauge = GaugeMetricFamily(f"penstock:{name}", f"{words} {SHARED}", labels=_LABEL)
        gauge.add_metric(label, value)
        yield gauge


def _lines(service: Service, label: list[str]) -> Iterator[Metric]:
    counts = service.lines
    if counts is None:
        return
    ended = CounterMetricFamily(
        "penstock:batch_lines",
        f"Lines of batches answered, by outcome. {OURS}",
        labels=[*_LABEL, "outcome"],
    )
    for outcome in ("completed", "failed", "refused"):
        ended.add_metric([*label, outcome], getattr(counts, outcome))
    yield ended
    gauge = GaugeMetricFamily(
        "penstock:batch_open_lines", f"Lines of batches being answered. {OURS}", labels=_LABEL
    )
    gauge.add_metric(label, counts.open)
    yield gauge
