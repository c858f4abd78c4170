"""Reads a prepared folder. The package that writes it would bring array libraries."""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.config import EngineConfig
from penstock.errors import StartupError
from penstock.model_config import PreparedModel
from penstock_engine.facts import EngineFacts

FORMAT_VERSION = 1
"""The one that `penstock.prepare` writes; a test holds the two together."""


def read_facts(config: EngineConfig, folder: Path, *, boot: str, created: int) -> EngineFacts:
    """Everything that the core needs of `folder`. Raises StartupError, which names the file."""
    try:
        manifest = (folder / "manifest.json").read_bytes()
        model = msgspec.json.decode(manifest, type=PreparedModel)
        _check_version(model, folder)
        tokenizer = (folder / "tokenizer.json").read_bytes()
        template = (folder / "chat_template.jinja").read_bytes() if model.has_chat_template else b""
    except OSError as error:
        raise StartupError(f"{folder} is no prepared folder: {error}") from error
    except msgspec.DecodeError as error:
        raise StartupError(f"{folder / 'manifest.json'} can't be read: {error}") from error
    return EngineFacts(
        config=config,
        model=model,
        folder=str(folder.resolve()),
        tokenizer=tokenizer,
        template=template,
        boot=boot,
        created=created,
    )


def _check_version(model: PreparedModel, folder: Path) -> None:
    if model.format_version != FORMAT_VERSION:
        raise StartupError(
            f"{folder} has format version {model.format_version}, this build reads "
            f"{FORMAT_VERSION}; prepare the model again"
        )
