"""The prepare step: whoever starts the system runs it before any other process exists."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec

from penstock.errors import ModelNotFound
from penstock.generation_config import filled
from penstock.model_config import PreparedModel
from penstock.prepare.carry import carried
from penstock.prepare.checkpoint import Checkpoint
from penstock.prepare.folder import (
    FORMAT_VERSION,
    default_cache_dir,
    folder_name,
    is_sound,
    write_folder,
)
from penstock.prepare.from_gguf import gguf_inputs, read_gguf
from penstock.prepare.from_hub_folder import folder_inputs, read_hub_folder
from penstock.prepare.resolve import Fetch, Report, ResolvedModel, resolve
from penstock.prepare.samples import sample_digest


def prepare_model(
    model: str,
    cache_dir: str | os.PathLike[str] | None,
    report: Report,
    *,
    copy_weights: bool,
    fetch: Fetch = "missing",
) -> Path:
    """See `penstock.prepare.prepare`."""
    found = resolve(model, report, fetch)
    inputs, read = (
        (gguf_inputs, read_gguf) if found.kind == "gguf" else (folder_inputs, read_hub_folder)
    )
    root = Path(cache_dir).expanduser().absolute() if cache_dir else default_cache_dir()
    if copy_weights:
        found = carried(found, inputs(found.path), root, report)
    try:
        name = folder_name(found.name, found.source, inputs(found.path))
    except OSError as error:
        raise ModelNotFound(f"{found.path} can't be read: {error}") from None
    folder = root / "models" / name
    if is_sound(folder):
        return folder
    report(f"preparing {found.name}")
    checkpoint = read(found.path)
    return write_folder(
        folder, _manifest(found, checkpoint), checkpoint.tokenizer_json, checkpoint.chat_template
    )


def _manifest(found: ResolvedModel, checkpoint: Checkpoint) -> PreparedModel:
    return PreparedModel(
        format_version=FORMAT_VERSION,
        name=found.name,
        source=found.source,
        config=checkpoint.config,
        generation=filled(checkpoint.generation, found.advised),
        weights=checkpoint.weights,
        digest=_digest(checkpoint),
        has_chat_template=bool(checkpoint.chat_template),
        add_bos=checkpoint.add_bos,
        pooling=checkpoint.pooling,
    )


def _digest(checkpoint: Checkpoint) -> str:
    """sha256 over everything that outputs depend on. Paths and times are not part of it, so two
    machines with the same files agree; of the weights, evenly spread samples are read."""
    settings = (checkpoint.config, checkpoint.add_bos, checkpoint.pooling)
    digest = hashlib.sha256(msgspec.json.encode(settings))
    digest.update(hashlib.sha256(checkpoint.tokenizer_json).digest())
    digest.update(hashlib.sha256(checkpoint.chat_template.encode()).digest())
    for file in checkpoint.weights.files:
        digest.update(sample_digest(Path(file)))
    return digest.hexdigest()
