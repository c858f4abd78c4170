"""What plug-ins bring to a gateway: endpoints, which come after our own, observers of requests, and
families of metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from penstock.client.observer import Observer, RequestObserver
from penstock.config import plugins
from penstock.config.plugins import BrokenPlugin, Plugin
from penstock.process import logs
from penstock_gateway.http.operations import OperationRoute
from penstock_gateway.service import Service

if TYPE_CHECKING:
    from penstock.client.observer import ObservedRequest
    from penstock.protocol.common import FinishReason
    from penstock_gateway.service import Service


def plugged_routes(service: Service, taken: Iterable[OperationRoute]) -> list[OperationRoute]:
    """Routes of all plug-ins' endpoints. taken: ours, which they can't replace.

    A plug-in is a function from Service to routes, like an endpoint of ours. One that can't be used
    is left out whole; StartupError is raised where `--plugins` names it."""
    found: list[OperationRoute] = []
    paths = {_place(route) for route in taken}
    wanted = service.config.plugins
    for plugin in plugins.installed_plugins(plugins.ENDPOINTS, wanted):
        try:
            routes = _routes(plugin, service, paths)
        except BrokenPlugin as error:
            plugins.leave_out(plugins.ENDPOINTS, error, wanted)
            continue
        found += routes
        paths |= {_place(route) for route in routes}
    return found


def _routes(
    plugin: Plugin[object], service: Service, taken: set[tuple[str, str]]
) -> list[OperationRoute]:
    whose = f"the plug-in {plugin.name} of {plugin.package}"
    try:
        routes = list(plugin.value(service))  # type: ignore[operator]
    except Exception as error:
        raise BrokenPlugin(f"{whose} has no routes: {type(error).__name__}: {error}") from error
    for route in routes:
        if not isinstance(route, OperationRoute):
            raise BrokenPlugin(f"{whose} gives {route!r}, which is not an OperationRoute")
        if _place(route) in taken:
            raise BrokenPlugin(f"{whose} wants {' '.join(_place(route))}, which already exists")
        # It may read parameters that it says nothing of.
        route.checks_query = bool(route.operation.query)
    return routes


def _place(route: OperationRoute) -> tuple[str, str]:
    return route.operation.method, route.operation.template


log = logs.get(__name__)


def plugged_loggers(wanted: str, served: Callable[[], str | None]) -> list[Observer]:
    """An observer of each plug-in for the requests to one model. wanted: as `--plugins`.  served:
    gives the model's name, once it is known.

    A plug-in is a function from `served` to an Observer. StartupError is raised for one that can't
    be used and that `wanted` names."""
    found: list[Observer] = []
    for plugin in plugins.installed_plugins(plugins.LOGGERS, wanted):
        whose = f"the plug-in {plugin.name} of {plugin.package}"
        try:
            found.append(GuardedObserver(plugin.value(served), whose))  # type: ignore[operator]
        except Exception as error:
            broken = BrokenPlugin(f"{whose} can't log: {type(error).__name__}: {error}")
            plugins.leave_out(plugins.LOGGERS, broken, wanted)
    return found


class GuardedObserver:
    """Wraps a plug-in's observer, which is not called again once it has raised."""

    def __init__(self, observer: Observer, whose: str) -> None:
        if not callable(getattr(observer, "request", None)):
            raise TypeError(f"{observer!r} has no `request`")
        self._observer = observer
        self._whose = whose
        self.broken = False

    def request(self, prompt_tokens: int) -> RequestObserver | None:
        try:
            heard = None if self.broken else self._observer.request(prompt_tokens)
        except Exception as error:
            self.fail(error)
            return None
        return None if heard is None else _Guarded(self, heard)

    def fail(self, error: Exception) -> None:
        """Calls the plug-in's logger no more after its first error."""
        if not self.broken:
            self.broken = True
            reason = f"{type(error).__name__}: {error}"
            log.error(
                "a plug-in's logger failed and is no longer called",
                plugin=self._whose,
                reason=reason,
            )


class _Guarded(RequestObserver):
    """A plug-in's observer, which can neither refuse a request nor hold one: `admit` and `keep` are
    not passed on."""

    def __init__(self, guard: GuardedObserver, observer: RequestObserver) -> None:
        self._guard = guard
        self._observer = observer

    def submitted(self, request: ObservedRequest) -> None:
        self._tell(lambda: self._observer.submitted(request))

    def first_token(self, request: ObservedRequest) -> None:
        self._tell(lambda: self._observer.first_token(request))

    def delta(self, tokens: int, elapsed: float | None) -> None:
        self._tell(lambda: self._observer.delta(tokens, elapsed))

    def finished(self, reason: FinishReason, sequences: int) -> None:
        self._tell(lambda: self._observer.finished(reason, sequences))

    def ended(self, request: ObservedRequest) -> None:
        self._tell(lambda: self._observer.ended(request))

    def _tell(self, say: Callable[[], None]) -> None:
        if self._guard.broken:
            return
        try:
            say()
        except Exception as error:
            self._guard.fail(error)


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
