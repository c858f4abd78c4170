"""The adapters that an engine core's settings name: read at its first start, and noted for later
ones."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from penstock.config.settings import EngineConfig
from penstock.errors import InvalidRequest, StartupError
from penstock.protocol.common import NamedAdapter
from penstock.request.lora import lora_modules


def adapters_of(
    config: EngineConfig, served: tuple[str, ...], noted: Path | None
) -> tuple[NamedAdapter, ...]:
    """The adapters of the settings, each read and copied. Raises StartupError that names one that
    can't be served."""
    settings = config.lora
    try:
        modules = lora_modules(settings.lora_modules, served)
    except InvalidRequest as error:
        raise StartupError(error.message) from None
    if not modules:
        return ()
    if not settings.enable_lora:
        raise StartupError("lora_modules is set, but enable_lora is not")
    known = _known(noted, [module.name for module in modules])
    if known is not None:
        return known
    from penstock.prepare.adapters import prepare_adapter

    found: list[NamedAdapter] = []
    for module in modules:
        try:
            prepared = prepare_adapter(
                module.path,
                max_rank=settings.max_lora_rank,
                cache_dir=config.model.cache_dir,
            )
        except InvalidRequest as error:
            raise StartupError(f"--lora-modules {module.name}: {error.message}") from None
        parent = module.base_model_name or ""
        found.append(NamedAdapter(module.name, prepared.file, 0, prepared.rank, parent))
    if noted is not None:
        _note(noted, found)
    return tuple(found)


def _known(noted: Path | None, names: list[str]) -> tuple[NamedAdapter, ...] | None:
    """Returns the adapters that were noted under these names; None if the note doesn't hold any
    more."""
    try:
        content = b"" if noted is None else noted.read_bytes()
        found = msgspec.json.decode(content, type=tuple[NamedAdapter, ...])
    except (OSError, msgspec.DecodeError):
        return None
    there = all(each.file is not None and Path(each.file.path).exists() for each in found)
    return found if there and [each.name for each in found] == names else None


def _note(noted: Path, adapters: list[NamedAdapter]) -> None:
    making = noted.with_suffix(f".{os.getpid()}")
    try:
        making.write_bytes(msgspec.json.encode(adapters))
        making.replace(noted)
    except OSError as error:
        raise StartupError(f"{noted} can't be written: {error.strerror}") from None
