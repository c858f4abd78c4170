"""The classes that a snapshot may hold: nothing else is written, and nothing else is rebuilt.

A module whose classes the core begins to use is added here; a test walks a busy core and names the
classes that are missing.
"""

from __future__ import annotations

import enum
import inspect
from types import ModuleType

import msgspec

from penstock import model_config
from penstock.config import settings
from penstock.metrics import histogram
from penstock.protocol import common, from_frontend, from_worker, to_frontend, to_worker
from penstock_engine import (
    blame,
    context,
    core,
    deadlines,
    door,
    draft,
    effects,
    endings,
    facts,
    fair_queue,
    from_frontends,
    from_workers,
    frontends,
    grammar_entry,
    grammars,
    pipeline,
    queue,
    rank_faults,
    rank_group,
    rank_results,
    remote_kv,
    request,
    scheduler,
    timeline,
    workers,
)
from penstock_engine.kv import cache, host, pool, reuse, table
from penstock_engine.metrics import counts
from penstock_engine.policies import (
    accounts,
    admission,
    compiling,
    dealing,
    fair,
    forecast,
    order,
    pace,
    policy,
    preemption,
    priority,
    registry,
    resumption,
    shares,
    tenants,
)

_MESSAGES = (settings, model_config, common, from_frontend, from_worker, to_frontend, to_worker)
"""Modules whose msgspec structs are all values, and known."""

_STATE = (
    accounts,
    admission,
    blame,
    cache,
    compiling,
    context,
    core,
    counts,
    deadlines,
    dealing,
    door,
    draft,
    effects,
    endings,
    facts,
    fair,
    fair_queue,
    forecast,
    from_frontends,
    from_workers,
    frontends,
    grammar_entry,
    grammars,
    histogram,
    host,
    order,
    pace,
    pipeline,
    policy,
    pool,
    preemption,
    priority,
    queue,
    rank_faults,
    rank_group,
    rank_results,
    remote_kv,
    registry,
    request,
    resumption,
    reuse,
    scheduler,
    shares,
    table,
    tenants,
    timeline,
    workers,
)
"""Modules whose classes make up a core's state."""


def _classes(module: ModuleType) -> list[type]:
    """Those that the module defines, and that objects of the core can be of."""
    return [
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and value.__module__ == module.__name__
        and not issubclass(value, BaseException)
    ]


def name_of(cls: type) -> str:
    """The name by which a snapshot calls a class."""
    return f"{cls.__module__}.{cls.__qualname__}"


def is_struct(cls: type) -> bool:
    return issubclass(cls, msgspec.Struct)


KNOWN: dict[str, type] = {
    **{name_of(cls): cls for module in _STATE for cls in _classes(module)},
    **{name_of(cls): cls for module in _MESSAGES for cls in _classes(module) if is_struct(cls)},
}


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
