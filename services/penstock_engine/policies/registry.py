"""Which policy a configuration means: every module of this package may define one."""

from __future__ import annotations

from importlib import import_module
from inspect import isabstract, isclass
from pkgutil import iter_modules

from penstock.config.settings import SchedulerSettings
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
    """A fresh policy, with a queue of its own."""
    return known_policies()[settings.scheduling_policy].make(settings, tenants)
