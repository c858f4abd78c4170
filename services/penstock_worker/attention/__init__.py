"""Attention backends, by name. Imported when chosen: a missing library breaks only its own."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from penstock.errors import StartupError

if TYPE_CHECKING:
    from penstock_worker.attention.interface import AttentionBackend

_BACKENDS = {"reference": ("penstock_worker.attention.reference", "ReferenceAttention")}
"""Fastest first: `auto` takes the first whose module can be imported."""


def backend_class(name: str) -> type[AttentionBackend]:
    """The backend called `name`; "auto": the fastest. Raises StartupError if there is none."""
    if name == "auto":
        return _fastest()
    if name not in _BACKENDS:
        raise StartupError(
            f"attention_backend is {name!r}; allowed are auto, {', '.join(_BACKENDS)}"
        )
    try:
        return _import(name)
    except ImportError as error:
        raise StartupError(f"attention backend {name} can't be loaded: {error}") from error


def _fastest() -> type[AttentionBackend]:
    reasons = []
    for name in _BACKENDS:
        try:
            return _import(name)
        except ImportError as error:
            reasons.append(f"{name}: {error}")
    raise StartupError(f"no attention backend can be loaded ({'; '.join(reasons)})")


def _import(name: str) -> type[AttentionBackend]:
    module, attribute = _BACKENDS[name]
    found: type[AttentionBackend] = getattr(import_module(module), attribute)
    return found
