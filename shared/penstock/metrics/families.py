"""Prometheus' families of numbers that were counted elsewhere, all with the model's name.

Imports prometheus_client: only where somebody asks for metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from penstock.metrics.histogram import Histogram

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
LABEL = "model_name"


def keyed(values: Mapping[Any, float]) -> dict[tuple[str, ...], float]:
    """Numbers by the value of their one label, as `gauges` and `counters` take them."""
    return {(name,): value for name, value in values.items()}


class Families:
    """Makes families that have the label of one model. model: its name; empty: not known yet."""

    def __init__(self, model: str) -> None:
        self._model = model

    def gauge(self, name: str, words: str, value: float) -> Metric:
        """A number that goes up and down."""
        return self.gauges(name, words, (), {(): value})

    def gauges(
        self, name: str, words: str, labels: Iterable[str], values: Mapping[tuple[str, ...], float]
    ) -> Metric:
        """A family of gauges, one for each value of the labels."""
        family = GaugeMetricFamily(name, words, labels=[LABEL, *labels])
        for key, value in values.items():
            family.add_metric([self._model, *key], value)
        return family

    def counter(self, name: str, words: str, value: float) -> Metric:
        """A number that grows. name: without its `_total`."""
        return self.counters(name, words, (), {(): value})

    def counters(
        self, name: str, words: str, labels: Iterable[str], values: Mapping[tuple[str, ...], float]
    ) -> Metric:
        """A family of counters, one for each value of the labels."""
        family = CounterMetricFamily(name, words, labels=[LABEL, *labels])
        for key, value in values.items():
            family.add_metric([self._model, *key], value)
        return family

    def histogram(self, name: str, words: str, histogram: Histogram) -> Metric:
        """Counts by bucket, and the sum of what was observed."""
        return self.histograms(name, words, (), {(): histogram})

    def histograms(
        self,
        name: str,
        words: str,
        labels: Iterable[str],
        values: Mapping[tuple[str, ...], Histogram],
    ) -> Metric:
        """A family of histograms, one for each value of the labels."""
        family = HistogramMetricFamily(name, words, labels=[LABEL, *labels])
        for key, histogram in values.items():
            family.add_metric([self._model, *key], histogram.cumulative(), histogram.total)
        return family


class _Called(Collector):
    def __init__(self, collect: Callable[[], Iterator[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterator[Metric]:
        return self._collect()


def renderer(collect: Callable[[], Iterator[Metric]]) -> Callable[[], bytes]:
    """What gives the text that Prometheus reads: `collect`'s families, made when they are asked
    for, and those of this process (memory, CPU time, open files)."""
    registry = CollectorRegistry()
    registry.register(_Called(collect))
    ProcessCollector(registry=registry)
    return lambda: generate_latest(registry)
