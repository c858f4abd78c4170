"""Families of metrics that plug-ins bring, behind ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from penstock.config import plugins
from penstock.config.plugins import Plugin
from penstock.process import logs

if TYPE_CHECKING:
    from penstock_gateway.service import Service

log = logs.get(__name__)

MOST_SAMPLES = 100_000
"""Samples of one plug-in, at a time; more are an error."""


class PluggedMetrics:
    """Ours, and then those of plug-ins: functions from Service to families, which are called at
    each request. One that raises, or takes a name that is there, is logged and asked no more."""

    def __init__(self, ours: Callable[[], Iterator[Metric]], service: Service) -> None:
        self._ours = ours
        self._service = service
        self._plugins = plugins.installed_plugins(plugins.METRICS, service.config.plugins)

    def collect(self) -> Iterator[Metric]:
        names = set()
        for family in self._ours():
            names.add(family.name)
            yield family
        for plugin in tuple(self._plugins):
            try:
                families = self._of(plugin, names)
            except Exception as error:
                self._plugins.remove(plugin)
                reason = f"{type(error).__name__}: {error}"
                whose = f"{plugin.name} of {plugin.package}"
                log.error("a plug-in's metrics are left out", plugin=whose, reason=reason)
                continue
            names |= {family.name for family in families}
            yield from families

    def _of(self, plugin: Plugin[object], taken: set[str]) -> list[Metric]:
        families: list[Metric] = []
        names, samples = set(taken), 0
        for family in plugin.value(self._service):  # type: ignore[operator]
            if not isinstance(family, Metric):
                raise TypeError(f"{family!r} is not a metric family")
            if family.name in names:
                raise ValueError(f"the metric family {family.name} already exists")
            names.add(family.name)
            samples += len(family.samples)
            if samples > MOST_SAMPLES:
                raise ValueError(f"more than {MOST_SAMPLES} samples")
            families.append(family)
        return families
