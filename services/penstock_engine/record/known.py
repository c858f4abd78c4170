"""The classes that a snapshot may hold: nothing else is written, and nothing else is rebuilt.

They are those of the packages that make up the core, and the structs of which its facts and
messages are made. A test walks a busy core and names the classes that are missing.
"""

from __future__ import annotations

import enum
import inspect
from functools import cache
from importlib import import_module
from pkgutil import walk_packages
from types import ModuleType
from typing import Any

import msgspec
from msgspec.inspect import StructType, Type, multi_type_info

from penstock.metrics import histogram
from penstock.protocol.from_frontend import FromFrontend
from penstock.protocol.from_worker import FromWorker
from penstock.protocol.to_frontend import ToFrontend
from penstock.protocol.to_worker import ToWorker
from penstock_engine import (
    core,
    core_state,
    facts,
    handlers,
    kv,
    media,
    policies,
    request,
    scheduler,
    sessions,
    speculation,
    waiting,
)
from penstock_engine.metrics import counts
from penstock_engine.policies.registry import plugged_policies

_VALUES = (facts.EngineFacts, FromFrontend, FromWorker, ToFrontend, ToWorker)
"""Types of the values that come from outside or never change: their structs are known, and those
that they hold."""

_PACKAGES = (handlers, kv, media, policies, request, scheduler, sessions, speculation, waiting)
"""Packages all of whose modules make up a core's state."""


def _modules(package: ModuleType) -> list[ModuleType]:
    return [
        import_module(found.name)
        for found in walk_packages(package.__path__, f"{package.__name__}.")
    ]


_STATE = (
    core,
    core_state,
    counts,
    facts,
    histogram,
    *(module for package in _PACKAGES for module in _modules(package)),
)
"""Modules whose classes make up a core's state."""


def _classes(module: ModuleType) -> list[type]:
    """Classes that the module defines, and that objects of the core can be of."""
    return [
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and value.__module__ == module.__name__
        and not issubclass(value, BaseException)
    ]


def _structs(*types: Any) -> set[type]:
    """The msgspec structs that values of these types may be, or hold."""
    found: set[type] = set()
    left: list[Any] = [multi_type_info(types)]
    while left:
        one = left.pop()
        if isinstance(one, tuple):
            left += one
        elif isinstance(one, StructType):
            if one.cls not in found:
                found.add(one.cls)
                left += [field.type for field in one.fields]
        elif isinstance(one, Type):
            left += [getattr(one, name) for name in one.__struct_fields__]
    return found


def name_of(cls: type) -> str:
    """The name by which a snapshot calls a class."""
    return f"{cls.__module__}.{cls.__qualname__}"


def is_struct(cls: type) -> bool:
    return issubclass(cls, msgspec.Struct)


@cache
def known_classes() -> dict[str, type]:
    """The classes by name. Collected when a snapshot is first written or read."""
    return {
        **{name_of(cls): cls for module in _STATE for cls in _classes(module)},
        **{name_of(cls): cls for cls in _structs(*_VALUES)},
    }


def know_plugins() -> None:
    """The modules of installed scheduling policies are known from now on, too."""
    for policy in plugged_policies():
        module = import_module(policy.__module__)
        known_classes().update({name_of(cls): cls for cls in _classes(module)})


def is_enum(cls: type) -> bool:
    return issubclass(cls, enum.Enum)


def slots_of(cls: type) -> tuple[str, ...]:
    """Names of all slots of a class and its bases; of a struct: its fields."""
    if is_struct(cls):
        return tuple(cls.__struct_fields__)  # type: ignore[attr-defined]
    found: list[str] = []
    for base in reversed(cls.__mro__):
        slots = base.__dict__.get("__slots__", ())
        found += [slots] if isinstance(slots, str) else slots
    return tuple(name for name in found if name not in ("__dict__", "__weakref__"))
