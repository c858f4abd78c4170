"""Reads a prepared folder, once, at start."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from penstock.config.settings import EngineConfig
from penstock.errors import InvalidRequest, StartupError
from penstock.prepare.folder import check_contents, load_manifest
from penstock.protocol.common import NamedAdapter
from penstock.request.generation_config import generation_defaults
from penstock.request.lora import lora_modules
from penstock.text.given_template import read_template
from penstock_engine.facts import EngineFacts


def read_facts(
    config: EngineConfig, folder: Path, *, boot: str, created: int, noted: Path | None = None
) -> EngineFacts:
    """Everything that the core needs of `folder`. noted: a file that says what the adapters of the
    settings were at the first start; from then on their own files may change or go.

    Raises ModelNotFound, UnsupportedModel (see load_manifest) or StartupError, which is also for an
    adapter of the settings that can't be served.
    """
    model = load_manifest(folder)
    try:
        tokenizer = (folder / "tokenizer.json").read_bytes()
        template = (folder / "chat_template.jinja").read_bytes() if model.has_chat_template else b""
    except OSError as error:
        raise StartupError(f"{folder} is not a complete prepared folder: {error}") from error
    check_contents(model, tokenizer, template)
    generation = generation_defaults(model.generation, config.model)
    given = config.model.chat_template
    return EngineFacts(
        config=config,
        model=msgspec.structs.replace(model, generation=generation),
        folder=str(folder.resolve()),
        tokenizer=tokenizer,
        template=template if given is None else read_template(given).encode(),
        boot=boot,
        created=created,
        adapters=_adapters(config, (model.name, *config.model.served_names), noted),
    )


def _adapters(
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
        parent = module.base_model_name or prepared.parent
        found.append(NamedAdapter(module.name, prepared.file, 0, prepared.rank, parent))
    if noted is not None:
        _note(noted, found)
    return tuple(found)


def _known(noted: Path | None, names: list[str]) -> tuple[NamedAdapter, ...] | None:
    """What was noted of these names; None: nothing that still holds."""
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
