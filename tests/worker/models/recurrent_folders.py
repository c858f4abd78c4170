"""Prepared folders of models with recurrent layers, with a manifest alone: their weights are
random, by RandomWeights."""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.model.config import GenerationDefaults, PreparedModel, WeightFiles
from penstock.prepare.folder import FORMAT_VERSION, MANIFEST
from tests.worker.models.test_recurrent_models import read


def write_manifest(case: str, path: Path, *, vocab: int | None = None) -> None:
    """`case`: of recurrent_cases. `vocab`: None for the case's own."""
    config = read(case)
    if vocab is not None:
        config = msgspec.structs.replace(config, vocab_size=vocab)
    manifest = PreparedModel(
        format_version=FORMAT_VERSION,
        name=case,
        source=case,
        config=config,
        generation=GenerationDefaults(),
        weights=WeightFiles(format="safetensors", files=(), dtype="float32"),
        digest="0",
        has_chat_template=False,
    )
    (path / MANIFEST).write_bytes(msgspec.json.encode(manifest))
