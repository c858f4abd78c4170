"""Plug-ins: what other packages bring, found by entry point and imported when it is used."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from penstock.errors import StartupError
from penstock.process import logs

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints


log = logs.get(__name__)

AnObject = TypeVar("AnObject")

TOOL_PARSERS = "penstock.tool_parsers"
REASONING_PARSERS = "penstock.reasoning_parsers"
FAMILIES = "penstock.families"
ATTENTION_BACKENDS = "penstock.attention_backends"
SCHEDULING_POLICIES = "penstock.scheduling_policies"
ROUTING = "penstock.routing"
ENDPOINTS = "penstock.endpoints"
LOGGERS = "penstock.loggers"
METRICS = "penstock.metrics"
WORKER_EXTENSIONS = "penstock.worker_extensions"
KV_STORES = "penstock.kv_stores"

LISTED = (ENDPOINTS, LOGGERS, METRICS)
"""Groups whose plug-ins no other setting names: `--plugins` does."""

ALL, NONE = "all", "none"
"""Values of `--plugins` that are no names."""


class BrokenPlugin(Exception):
    """A plug-in that can't be used. Says which, of what package, and why."""


@dataclass(frozen=True, slots=True)
class Plugin(Generic[AnObject]):
    """What a package brings under a name. package: its name and version."""

    name: str
    package: str
    value: AnObject


def plugin_names(*groups: str) -> list[str]:
    """Names of all that are installed, without importing any."""
    return sorted({point.name for group in groups for point in _points(group)})


def plugin_packages(group: str) -> list[str]:
    """Names and versions of the packages that bring some, without importing any."""
    return sorted({_package(point) for point in _points(group)})


def named_plugin(group: str, name: str, flag: str, allowed: Iterable[str]) -> Plugin[object]:
    """The plug-in that a setting asks for. allowed: what the setting may be without plug-ins.

    Raises StartupError where there is none of that name, or it is broken."""
    if name not in plugin_names(group):
        known = [*allowed, *(each for each in plugin_names(group) if each not in allowed)]
        raise StartupError(f"{flag} is {name}; allowed: {', '.join(known)}")
    try:
        return _loaded(group, name)
    except BrokenPlugin as error:
        raise StartupError(f"{flag} {name}: {error}") from error


def installed_plugins(group: str, wanted: str = ALL) -> list[Plugin[object]]:
    """All of a group in alphabetical order, or those that `wanted` names with commas.

    One that is broken is named in the log and left out; where it was asked for by its name,
    StartupError is raised."""
    names = plugin_names(group)
    if wanted != ALL:
        asked = asked_plugins(wanted)
        names = [name for name in names if name in asked]
    found = []
    for name in names:
        try:
            found.append(_loaded(group, name))
        except BrokenPlugin as error:
            leave_out(group, error, wanted)
    return found


def leave_out(group: str, error: BrokenPlugin, wanted: str = ALL) -> None:
    """Leaves a broken plug-in out, with a line in the log. Raises StartupError if it was asked for
    by name."""
    if wanted != ALL:
        raise StartupError(f"{_flag(group)} {wanted}: {error}") from error
    log.warning("a plug-in is left out", group=group, reason=str(error))


def asked_plugins(wanted: str) -> list[str]:
    """The names in a value of `--plugins`; none for `all`, which asks for nothing by name."""
    if wanted in (ALL, NONE):
        return []
    return [name.strip() for name in wanted.split(",") if name.strip()]


def check_plugins(wanted: str, groups: tuple[str, ...] = LISTED) -> None:
    """Raises StartupError for a name that no installed package brings."""
    asked = asked_plugins(wanted)
    if not asked:
        return  # Looking for what is installed takes time.
    known = plugin_names(*groups)
    missing = [name for name in asked if name not in known]
    if missing:
        allowed = ", ".join([ALL, NONE, *known])
        raise StartupError(
            f"{_flag(groups[0])}: no plug-in is called {missing[0]}; allowed: {allowed}"
        )


def _flag(group: str) -> str:
    """The setting that lists names of the group's plug-ins."""
    return "--worker-extensions" if group == WORKER_EXTENSIONS else "--plugins"


def _loaded(group: str, name: str) -> Plugin[object]:
    points = [point for point in _points(group) if point.name == name]
    packages = sorted({_package(point) for point in points})
    if len(packages) > 1:
        raise BrokenPlugin(
            f"the plug-in {name} can't be used: {' and '.join(packages)} bring one each"
        )
    try:
        return Plugin(name, packages[0], points[0].load())
    # A module that ends the program is as broken as one that raises.
    except (Exception, SystemExit) as error:
        raise BrokenPlugin(
            f"the plug-in {name} of {packages[0]} can't be loaded: {type(error).__name__}: {error}"
        ) from error


def _points(group: str) -> EntryPoints:
    return _installed(tuple(sys.path)).select(group=group)


@cache
def _installed(path: tuple[str, ...]) -> EntryPoints:
    """All entry points of all installed packages, read once for each module path."""
    # Slow to import, and most processes ask for no plug-in.
    from importlib.metadata import entry_points

    # In Python 3.11 what this gives without arguments is another class, with the same method.
    return cast("EntryPoints", entry_points())


def _package(point: EntryPoint) -> str:
    return "an unnamed package" if point.dist is None else f"{point.dist.name} {point.dist.version}"


def check_named(field: str, value: str, built_in: Collection[str], group: str) -> None:
    """Raises ValueError for a name of neither. Doesn't import the plug-in."""
    if value in built_in:
        return
    brought = plugin_names(group)
    if value not in brought:
        raise ValueError(f"{field} is {value!r}; allowed: {', '.join([*built_in, *brought])}")
