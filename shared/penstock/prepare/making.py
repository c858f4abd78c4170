"""Reads a model that has no prepared folder yet, and says what its manifest is to be."""

from __future__ import annotations

from pathlib import Path

from penstock.config.settings import ModelImpl
from penstock.errors import UnsupportedModel
from penstock.families.served import module_of
from penstock.model.config import EncoderConfig, HeadConfig, ModelConfig, TransformersConfig
from penstock.model.prepared_model import PreparedModel
from penstock.prepare.checkpoint import Checkpoint
from penstock.prepare.digest import model_digest
from penstock.prepare.folder import FORMAT_VERSION, sample_digest
from penstock.prepare.resolve import ResolvedModel
from penstock.request.generation_config import filled


def read_checkpoint(
    found: ResolvedModel, model_impl: ModelImpl, language_model_only: bool, overrides: str
) -> Checkpoint:
    """Reads a model's files. Raises UnsupportedModel for those that can't be served."""
    if found.kind == "gguf" and model_impl == "transformers":
        raise UnsupportedModel(
            f"{found.path}: model_impl is transformers, whose code reads no GGUF files; a folder "
            "in the hub's format is needed, or auto"
        )
    if found.kind == "gguf":
        from penstock.prepare.from_gguf import read_gguf

        return read_gguf(found.path, found.mmproj, overrides)
    from penstock.prepare.from_hub_folder import read_hub_folder

    return read_hub_folder(
        found.path, model_impl, language_model_only=language_model_only, overrides=overrides
    )


def manifest_of(found: ResolvedModel, checkpoint: Checkpoint) -> PreparedModel:
    samples = {file: sample_digest(Path(file)) for file in _weights_of(checkpoint)}
    return PreparedModel(
        format_version=FORMAT_VERSION,
        name=found.name,
        source=found.source,
        config=checkpoint.config,
        generation=filled(checkpoint.generation, found.advised),
        weights=checkpoint.weights,
        digest=model_digest(checkpoint, samples),
        has_chat_template=bool(checkpoint.chat_template),
        add_bos=checkpoint.add_bos,
        pooling=checkpoint.pooling,
        media=checkpoint.media,
        family_module=_family_module(checkpoint.config),
        samples={file: digest.hex() for file, digest in samples.items()},
    )


def _family_module(config: ModelConfig | EncoderConfig | TransformersConfig | HeadConfig) -> str:
    return module_of(config.architecture) if isinstance(config, ModelConfig) else ""


def _weights_of(checkpoint: Checkpoint) -> list[str]:
    """The files that weights are read from."""
    dense = () if checkpoint.pooling is None else checkpoint.pooling.files
    files = [*checkpoint.weights.files, *(layer.file for layer in dense)]
    return [*files, checkpoint.weights.mmproj] if checkpoint.weights.mmproj else files
