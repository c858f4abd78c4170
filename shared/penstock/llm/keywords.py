"""Keywords of LLM and AsyncLLM: this project's settings, and vLLM's names for what is here too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from penstock.config.foreign_names import FOREIGN, RENAMED, VALUES, check_foreign, meant
from penstock.config.settings import EngineConfig
from penstock.config.tree import leaves, replace_settings
from penstock.errors import InvalidRequest
from penstock.request.lora import lora_modules_text

_OBJECTS = (
    "override_generation_config",
    "hf_overrides",
    "rope_scaling",
    "limit_mm_per_prompt",
    "mm_processor_kwargs",
    "speculative_config",
)
"""Settings that are JSON objects as flags, and dicts as keywords too."""


def engine_config(keywords: Mapping[str, Any]) -> EngineConfig:
    """The configuration that these keywords describe. Raises InvalidRequest."""
    known = {leaf.name: leaf for leaf in leaves(EngineConfig)}
    settings: dict[str, Any] = {}
    for given, value in keywords.items():
        name = RENAMED.get(given, given)
        if name in settings and settings[name] != value:
            raise InvalidRequest(f"{given}: {name} was given as well, with another value")
        if name not in known and name in FOREIGN:
            check_foreign(name, FOREIGN[name], value, keywords.get("model"))
            continue
        try:
            value = VALUES.get((name, value), value)
        except TypeError:  # not hashable: whatever it is, the check below names it
            pass
        if value is None and name in known and not known[name].optional:
            continue  # as in vLLM: the default
        if name == "served_model_name" and isinstance(value, (list, tuple)):
            value = ",".join(value)
        if name not in known:
            raise _unknown(given, known)
        if name in _OBJECTS and isinstance(value, dict):
            value = msgspec.json.encode(value).decode() if value else known[name].default
        if name == "lora_modules":
            value = lora_modules_text(value)
        if name == "allowed_media_domains" and isinstance(value, (list, tuple)):
            value = ",".join(value)
        settings[name] = value
    config = replace_settings(EngineConfig(), settings)
    _ = config.speculation.config  # What it says wrongly is said before anything starts.
    return config


def _unknown(name: str, known: Iterable[str]) -> InvalidRequest:
    near = meant(name, known)
    hint = f"did you mean {near!r}?" if near else "`penstock config-table` lists all settings"
    return InvalidRequest(f"no setting is called {name!r}; {hint}", param=name)
