"""The classes that a snapshot may hold: nothing else is written, and nothing else is rebuilt.

They are those of the packages that make up the core. A module that the core begins to use outside
of them is added here; a test walks a busy core and names the classes that are missing.
"""

from __future__ import annotations

import enum
import inspect
from importlib import import_module
from pkgutil import walk_packages
from types import ModuleType

import msgspec

from penstock.config import (
    cache_settings,
    gateway_settings,
    media_settings,
    model_settings,
    scheduler_settings,
    settings,
    speculative_settings,
    worker_settings,
)
from penstock.metrics import histogram
from penstock.model import (
    audio_spec,
    block_index_spec,
    document_spec,
    image_facts,
    kv_layout,
    layer_spec,
    media_facts,
    mobilenet_spec,
    pooling_config,
    projector_spec,
    quantised_checkpoint,
    recurrent_spec,
    sound_facts,
    tower_spec,
    transcription_facts,
    video_facts,
)
from penstock.model import config as model_config
from penstock.model import speculation as drafting
from penstock.protocol import (
    common,
    from_frontend,
    from_worker,
    to_frontend,
    to_worker,
    worker_resources,
)
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

_MESSAGES = (
    audio_spec,
    cache_settings,
    gateway_settings,
    media_settings,
    model_settings,
    scheduler_settings,
    settings,
    speculative_settings,
    worker_settings,
    block_index_spec,
    document_spec,
    image_facts,
    kv_layout,
    layer_spec,
    media_facts,
    mobilenet_spec,
    model_config,
    pooling_config,
    projector_spec,
    quantised_checkpoint,
    recurrent_spec,
    sound_facts,
    tower_spec,
    transcription_facts,
    video_facts,
    drafting,
    common,
    from_frontend,
    from_worker,
    to_frontend,
    to_worker,
    worker_resources,
)
"""Modules whose msgspec structs are all values, and known."""

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


def name_of(cls: type) -> str:
    """The name by which a snapshot calls a class."""
    return f"{cls.__module__}.{cls.__qualname__}"


def is_struct(cls: type) -> bool:
    return issubclass(cls, msgspec.Struct)


KNOWN: dict[str, type] = {
    **{name_of(cls): cls for module in _STATE for cls in _classes(module)},
    **{name_of(cls): cls for module in _MESSAGES for cls in _classes(module) if is_struct(cls)},
}


def know_plugins() -> None:
    """The modules of installed scheduling policies are known from now on, too."""
    for policy in plugged_policies():
        module = import_module(policy.__module__)
        KNOWN.update({name_of(cls): cls for cls in _classes(module)})


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
