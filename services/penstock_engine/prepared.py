"""Reads a prepared folder, once, at start."""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.chat_template import read_template
from penstock.config.settings import EngineConfig
from penstock.errors import InvalidRequest, StartupError
from penstock.generation_config import generation_defaults
from penstock.lora import lora_modules
from penstock.prepare.folder import check_contents, load_manifest
from penstock.protocol.common import NamedAdapter
from penstock_engine.facts import EngineFacts


def read_facts(config: EngineConfig, folder: Path, *, boot: str, created: int) -> EngineFacts:
    """Everything that the core needs of `folder`.

    Raises ModelNotFound, UnsupportedModel (see load_manifest) or StartupError, which is also for an
    adapter of the settings that can't be served.
    """
    model = load_manifest(folder)
    try:
        tokenizer = (folder / "tokenizer.json").read_bytes()
        template = (folder / "chat_template.jinja").read_bytes() if model.has_chat_template else b""
    except OSError as error:
        raise StartupError(f"{folder} is not a whole prepared folder: {error}") from error
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
        adapters=_adapters(config, (model.name, *config.model.served_names)),
    )


def _adapters(config: EngineConfig, served: tuple[str, ...]) -> tuple[NamedAdapter, ...]:
    """Those of the settings, each read and copied. Raises StartupError that names one that can't be
    served."""
    settings = config.lora
    try:
        modules = lora_modules(settings.lora_modules, served)
    except InvalidRequest as error:
        raise StartupError(error.message) from None
    if not modules:
        return ()
    if not settings.enable_lora:
        raise StartupError("lora_modules is given, and enable_lora is not")
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
    return tuple(found)
