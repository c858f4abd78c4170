"""Endpoints of plug-ins, which come after our own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.config import plugins
from penstock.config.plugins import BrokenPlugin, Plugin
from penstock_gateway.http.operations import OperationRoute

if TYPE_CHECKING:
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
