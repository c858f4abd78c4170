"""Which policy a configuration means: every module of this package may define one."""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module
from inspect import isabstract, isclass
from pkgutil import iter_modules

from penstock.config.plugins import SCHEDULING_POLICIES, installed_plugins, named_plugin
from penstock.config.settings import SchedulerSettings
from penstock.errors import StartupError
from penstock_engine import policies
from penstock_engine.policies.policy import Policy
from penstock_engine.policies.tenants import Tenants


def known_policies() -> dict[str, type[Policy]]:
    """All policies by name, in alphabetical order of their modules."""
    found: dict[str, type[Policy]] = {}
    for module in iter_modules(policies.__path__):
        for value in vars(import_module(f"{policies.__name__}.{module.name}")).values():
            if isclass(value) and issubclass(value, Policy) and not isabstract(value):
                found[value.name] = value
    return found


def make_policy(settings: SchedulerSettings, tenants: Tenants) -> Policy:
    """A fresh policy, with a queue of its own. Raises StartupError for a plug-in's that can't be
    used."""
    name = settings.policy
    known = known_policies()
    kind = known[name] if name in known else _plugged(name, known)
    return kind.make(settings, tenants)


def plugged_policies() -> list[type[Policy]]:
    """Policies of all installed plug-ins; a broken one is left out."""
    found = [plugin.value for plugin in installed_plugins(SCHEDULING_POLICIES)]
    return [each for each in found if isclass(each) and issubclass(each, Policy)]


def _plugged(name: str, known: Collection[str]) -> type[Policy]:
    plugin = named_plugin(SCHEDULING_POLICIES, name, "--scheduling-policy", known)
    kind = plugin.value
    if not (isclass(kind) and issubclass(kind, Policy)) or isabstract(kind):
        raise StartupError(
            f"--scheduling-policy {name}: {kind!r} of {plugin.package} is not a complete Policy"
        )
    if kind.name != name:
        raise StartupError(
            f"--scheduling-policy {name}: {plugin.package} has a policy whose name is {kind.name}"
        )
    return kind
