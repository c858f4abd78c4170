"""Adapters that come with the models of a list."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.config.model_list import ModelEntry
from penstock.config.settings import ServeConfig
from penstock.config.tree import replace_settings
from penstock.errors import InvalidRequest
from penstock.request.lora import lora_modules


def check_adapters(entries: Sequence[ModelEntry]) -> None:
    """Raises InvalidRequest where an adapter's name is another's, or a model's."""
    names = [name for entry in entries for name in (*entry.names, *adapters_of(entry))]
    for name in names:
        if names.count(name) > 1:
            raise InvalidRequest(f"--models: an adapter is called {name!r}, and that is taken")


def adapters_of(entry: ModelEntry) -> tuple[str, ...]:
    """Names of the adapters that the entry's settings have. Raises InvalidRequest."""
    try:
        alone = replace_settings(ServeConfig(), {"lora_modules": entry.settings["lora_modules"]})
        modules = lora_modules(alone.engine.lora.lora_modules)
    except KeyError:
        return ()
    except InvalidRequest as error:
        raise InvalidRequest(f"{entry.name}: {error}", param=error.param) from None
    return tuple(module.name for module in modules)
