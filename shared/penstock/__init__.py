"""Penstock: an LLM serving system. This package is what users import, and what processes share.

Names are imported when they are first used, so that `import penstock` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from penstock.version import __version__

if TYPE_CHECKING:
    from penstock.llm import LLM, AsyncLLM
    from penstock.pooling_params import PoolingParams
    from penstock.sampling_params import SamplingParams
    from penstock.structured_outputs import StructuredOutputs

__all__ = [
    "LLM",
    "AsyncLLM",
    "PoolingParams",
    "SamplingParams",
    "StructuredOutputs",
    "__version__",
]

_HOMES = {
    "LLM": "penstock.llm",
    "AsyncLLM": "penstock.llm",
    "PoolingParams": "penstock.pooling_params",
    "SamplingParams": "penstock.sampling_params",
    "StructuredOutputs": "penstock.structured_outputs",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
