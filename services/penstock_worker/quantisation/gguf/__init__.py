"""The quantised types of GGUF files. Each has a module, which is called like it in lower case."""

from __future__ import annotations

from importlib import import_module

from penstock.formats.gguf import QUANTISED_TYPES
from penstock_worker.quantisation.interface import StoredFormat


def _format(name: str) -> StoredFormat:
    """The format that the module of a type defines."""
    found: StoredFormat = getattr(import_module(f"{__name__}.{name.lower()}"), name)
    return found


GGUF_FORMATS = tuple(map(_format, QUANTISED_TYPES))

__all__ = ["GGUF_FORMATS"]
