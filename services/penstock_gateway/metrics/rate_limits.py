"""Metrics of the storage that gateways share for limits; none where each counts by itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from penstock.metrics.families import Families
from penstock_gateway.metrics.engines import OURS

if TYPE_CHECKING:
    from penstock_gateway.keys.rate_limits import RateLimits


def rate_limit_families(limits: RateLimits | None, families: Families) -> Iterator[Metric]:
    """Whether it answers, how fast, and what it doesn't know."""
    if limits is None or limits.shared is None or limits.client is None:
        return
    yield families.histogram(
        "penstock:rate_limit_storage_seconds",
        f"Round trip to the storage of rate limits, of requests that came together. {OURS}",
        limits.client.round_trips,
    )
    yield families.counter(
        "penstock:rate_limit_storage_failures",
        f"Round trips to the storage of rate limits that failed. {OURS}",
        limits.client.failures,
    )
    yield families.gauge(
        "penstock:rate_limit_fallback_active",
        "1 while the storage of rate limits doesn't answer, so that --rate-limit-fallback applies, "
        f"0 otherwise. {OURS}",
        limits.shared.down,
    )
    yield families.gauge(
        "penstock:rate_limit_uncounted",
        f"Requests and tokens kept to be counted in the storage of rate limits. {OURS}",
        limits.shared.uncounted,
    )
    yield families.counter(
        "penstock:rate_limit_lost",
        "Requests and tokens never counted in the storage of rate limits: it was away for more than"
        f" a minute. {OURS}",
        limits.shared.lost,
    )
