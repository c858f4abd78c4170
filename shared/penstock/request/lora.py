"""LoRARequest: which adapter the library applies, in vLLM's shape; and the adapters of settings."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec

from penstock.config.model_list import ModelEntry
from penstock.config.settings import ServeConfig
from penstock.config.tree import replace_settings
from penstock.errors import InvalidRequest
from penstock.protocol.common import MAX_ADAPTER_NAME


class LoRARequest(msgspec.Struct, frozen=True):
    """An adapter, for `lora_request=` of the library's calls."""

    lora_name: str
    """A name for people; what is applied are the files at lora_path."""
    lora_int_id: int = 1
    """Taken for vLLM's sake; at least 1. The adapter's contents say which it is."""
    lora_path: str = ""
    """A folder in PEFT's format, or a .gguf file."""
    base_model_name: str | None = None

    def __post_init__(self) -> None:
        check_adapter_name(self.lora_name, "lora_name")
        if self.lora_int_id < 1:
            raise InvalidRequest(
                f"lora_int_id is {self.lora_int_id}; it must be 1 or greater", param="lora_int_id"
            )
        if not self.lora_path:
            raise InvalidRequest(
                "lora_path is empty; it must be the path of an adapter", param="lora_path"
            )

    @property
    def name(self) -> str:
        return self.lora_name

    @property
    def path(self) -> str:
        return self.lora_path


class LoraModule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An adapter that a server has from the start."""

    name: str
    path: str
    base_model_name: str | None = None


def check_adapter_name(name: str, param: str) -> None:
    """Raises InvalidRequest for what can't be an adapter's name."""
    if not 1 <= len(name) <= MAX_ADAPTER_NAME or not name.isprintable() or name != name.strip():
        raise InvalidRequest(
            f"{param} must be 1 to {MAX_ADAPTER_NAME} printable characters, not {name[:80]!r}",
            param=param,
        )


def lora_modules(given: str | None, served: Sequence[str] = ()) -> list[LoraModule]:
    """The adapters that the setting lora_modules names.

    served: names of the model itself, which no adapter may have.  Raises InvalidRequest that says
    what is wrong with which of them.
    """
    words = [word.strip() for word in (given or "").splitlines() if word.strip()]
    found: list[LoraModule] = []
    for word in words:
        found += _modules(word)
    names = [*served, *(module.name for module in found)]
    for number, module in enumerate(found, start=len(served)):
        if module.name in names[:number]:
            raise InvalidRequest(
                f"lora_modules: the name {module.name!r} is given twice, or is the model's own",
                param="lora_modules",
            )
    return found


def _modules(word: str) -> list[LoraModule]:
    try:
        if word.startswith("["):
            found = msgspec.json.decode(word, type=list[LoraModule])
        elif word.startswith("{"):
            found = [msgspec.json.decode(word, type=LoraModule)]
        else:
            name, equals, path = word.partition("=")
            if not equals:
                raise InvalidRequest(
                    f"lora_modules: {word[:200]!r} is not NAME=PATH", param="lora_modules"
                )
            found = [LoraModule(name.strip(), path.strip())]
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"lora_modules: {word[:200]}: {error}", param="lora_modules") from None
    for module in found:
        check_adapter_name(module.name, "lora_modules")
        if not module.path:
            raise InvalidRequest(f"lora_modules: {module.name!r} has no path", param="lora_modules")
    return found


def lora_modules_text(value: object) -> object:
    """The setting that a library's keyword stands for: a list of dicts or words is one too."""
    if isinstance(value, dict):
        return json.dumps(value)
    if isinstance(value, (list, tuple)):
        return "\n".join(each if isinstance(each, str) else json.dumps(each) for each in value)
    return value


# Adapters that come with the models of a list.


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
