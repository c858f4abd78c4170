"""Reads a prepared folder, once, at start."""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.chat_template import read_template
from penstock.config.settings import EngineConfig
from penstock.errors import StartupError
from penstock.generation_config import generation_defaults
from penstock.prepare.folder import check_contents, load_manifest
from penstock_engine.facts import EngineFacts


def read_facts(config: EngineConfig, folder: Path, *, boot: str, created: int) -> EngineFacts:
    """Everything that the core needs of `folder`.

    Raises ModelNotFound, UnsupportedModel (see load_manifest) or StartupError.
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
    )
