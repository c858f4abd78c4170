"""Prepared folders with a manifest alone: their models' weights are random, by RandomWeights."""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.model.config import ModelConfig
from penstock.model.prepared_model import GenerationDefaults, PreparedModel, WeightFiles
from penstock.prepare.folder import FORMAT_VERSION, MANIFEST


def write_manifest(config: ModelConfig, path: Path, name: str) -> None:
    """Writes to the folder at the path that a model of this name has the config."""
    manifest = PreparedModel(
        format_version=FORMAT_VERSION,
        name=name,
        source=name,
        config=config,
        generation=GenerationDefaults(),
        weights=WeightFiles(format="safetensors", files=(), dtype="float32"),
        digest="0",
        has_chat_template=False,
    )
    (path / MANIFEST).write_bytes(msgspec.json.encode(manifest))
