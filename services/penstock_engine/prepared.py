"""Reads a prepared folder, once, at start."""

from __future__ import annotations

from pathlib import Path

from penstock.chat_template import read_template
from penstock.config.settings import EngineConfig
from penstock.errors import StartupError
from penstock.prepare import load_manifest
from penstock_engine.facts import EngineFacts


def read_facts(config: EngineConfig, folder: Path, *, boot: str, created: int) -> EngineFacts:
    """Everything that the core needs of `folder`.

    Raises ModelNotFound, UnsupportedModel (see load_manifest) or StartupError.
    """
    model = load_manifest(folder)
    try:
        tokenizer = (folder / "tokenizer.json").read_bytes()
        own = (folder / "chat_template.jinja").read_bytes() if model.has_chat_template else b""
    except OSError as error:
        raise StartupError(f"{folder} is not a whole prepared folder: {error}") from error
    given = config.model.chat_template
    return EngineFacts(
        config=config,
        model=model,
        folder=str(folder.resolve()),
        tokenizer=tokenizer,
        template=own if given is None else read_template(given).encode(),
        boot=boot,
        created=created,
    )
