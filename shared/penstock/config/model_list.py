"""The list of models that one server has, from a file or from words of the command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import msgspec

from penstock.config.settings import EngineConfig, GatewayConfig, ServeConfig
from penstock.config.tree import leaves, load_file, replace_settings
from penstock.errors import InvalidRequest
from penstock.process.machine import usable_cores

MOST_MODELS = 64
_NAME = re.compile(r"[^\s,=]{1,200}")

_OF_ALL = ("transport", "media")
"""Groups of the engine's settings that hold for all models."""
_OF_A_GATEWAY = (
    *("tool_call_parser", "reasoning_parser", "enable_auto_tool_choice", "tool_strict_level"),
)
"""Settings of the gateway that a model may have of its own."""
_SHARED_OUT = ("kv_memory_fraction", "kv_memory_gib", "host_kv_gib", "gpu_memory_utilization")


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model of the list."""

    model: str
    """The model, as --model names one."""
    name: str = ""
    """The name that requests use and replies show; default: made of `model`."""
    aliases: tuple[str, ...] = ()
    """Further names for requests."""
    load: Literal["pinned", "on-demand"] = "pinned"
    memory_gib: float | None = None
    """GiB that it counts for while it is loaded; its KV cache keeps to what its weights and
    host_kv_gib leave of it. Default: its weights, and the most that its KV caches may take."""
    settings: dict[str, Any] = {}
    """Settings of its own, by the names of flags with underscores."""

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)

    @property
    def pinned(self) -> bool:
        return self.load == "pinned"


class ModelsFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the file holds."""

    models: tuple[ModelEntry, ...]


def read_list(file: str) -> tuple[ModelEntry, ...]:
    """Raises InvalidRequest: no such file, not YAML, an unknown field, a name that appears twice,
    a setting that no model has of its own."""
    return checked(load_file(ModelsFile, file, "--models").models, f"--models {file}")


def checked(entries: Sequence[ModelEntry], where: str) -> tuple[ModelEntry, ...]:
    """The entries with their names. Raises InvalidRequest."""
    if not 1 <= len(entries) <= MOST_MODELS:
        raise InvalidRequest(f"{where}: {len(entries)} models; 1 to {MOST_MODELS} are allowed")
    named = tuple(
        msgspec.structs.replace(entry, name=entry.name or name_of(entry.model)) for entry in entries
    )
    names = [name for entry in named for name in entry.names]
    for name in names:
        if not _NAME.fullmatch(name):
            raise InvalidRequest(
                f"{where}: a model can't be called {name!r}: a name has 1 to 200 characters, and "
                "no blanks, commas or equals signs"
            )
        if names.count(name) > 1:
            raise InvalidRequest(f"{where}: two models are called {name!r}; give one a name")
    for entry in named:
        if entry.memory_gib is not None and not 0 < entry.memory_gib < float("inf"):
            raise InvalidRequest(f"{where}: memory_gib of {entry.name} must be above 0")
        config_of(entry, ServeConfig(), len(named))  # Raises where a setting is wrong.
    return named


def name_of(model: str) -> str:
    """What a model is called by default: its alias or name on the hub, or of a path the last
    part."""
    if model.endswith(".gguf") or model.startswith((".", "/", "~")) or Path(model).exists():
        path = Path(model)
        return path.stem if path.suffix == ".gguf" else path.resolve().name
    return model


def settings_of_a_model() -> tuple[str, ...]:
    """Names that an entry's `settings` may have."""
    groups = {leaf.name: leaf.path for leaf in leaves(ServeConfig)}
    return tuple(
        name
        for name, path in groups.items()
        if (path[0] == "engine" and path[1] not in _OF_ALL and name not in _NAMED_ELSEWHERE)
        or name in _OF_A_GATEWAY
        or name == "data_parallel_size"
    )


_NAMED_ELSEWHERE = ("model", "served_model_name")


def config_of(entry: ModelEntry, base: ServeConfig, count: int) -> ServeConfig:
    """Returns the configuration of an entry's engine cores and workers. base: what holds for all
    models. count: of models, which share threads and memory except where an entry sets its own.

    Raises InvalidRequest.
    """
    allowed = settings_of_a_model()
    for name in entry.settings:
        if name not in allowed:
            raise InvalidRequest(
                f"{entry.name}: no model has a setting {name!r} of its own; there are "
                f"{', '.join(sorted(allowed))}",
                param=name,
            )
    engine = _own_part(base.engine, entry, count)
    config = msgspec.structs.replace(base, engine=engine)
    try:
        return replace_settings(
            config,
            {**entry.settings, "model": entry.model, "served_model_name": ",".join(entry.names)},
        )
    except InvalidRequest as error:
        raise InvalidRequest(f"{entry.name}: {error}", param=error.param) from None


def _folder_of(name: str) -> str:
    """A model's own below a folder of all: other names have others."""
    quoted = quote(name, safe="")
    return f"%2E{quoted[1:]}" if quoted.startswith(".") else quoted


def _own_part(engine: EngineConfig, entry: ModelEntry, count: int) -> EngineConfig:
    worker, record = engine.worker, engine.record
    if worker.threads is None:
        threads = max(1, int(usable_cores()) // count)
        worker = msgspec.structs.replace(worker, threads=threads)
    if record.record_dir is not None:
        folder = str(Path(record.record_dir) / _folder_of(entry.name))
        record = msgspec.structs.replace(record, record_dir=folder)
    parts = {name: getattr(engine.cache, name) / count for name in _SHARED_OUT}
    return msgspec.structs.replace(
        engine,
        worker=worker,
        record=record,
        cache=msgspec.structs.replace(engine.cache, **parts),
    )


def gateway_config_of(entry: ModelEntry, gateway: GatewayConfig) -> GatewayConfig:
    """The gateway's settings with those that the entry has of its own."""
    own = {name: value for name, value in entry.settings.items() if name in _OF_A_GATEWAY}
    return replace_settings(gateway, own)


def check_for_several(config: ServeConfig) -> None:
    """Raises InvalidRequest for settings that would mean one model where there are several."""
    for name, value in (
        ("served_model_name", config.engine.model.served_model_name),
        ("lora_modules", config.engine.lora.lora_modules),
        ("engine_metrics_port", config.engine.metrics.engine_metrics_port),
        ("worker_metrics_port", config.engine.metrics.worker_metrics_port),
    ):
        if value:
            raise InvalidRequest(
                f"{name} is one model's: with several it goes into the `settings` of its entry in "
                "--models",
                param=name,
            )
    if config.executor != "local":
        raise InvalidRequest("several models need --executor local", param="executor")
