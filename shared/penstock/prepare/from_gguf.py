"""A GGUF file as a Checkpoint."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.formats.float_types import FLOAT_DTYPES
from penstock.formats.gguf import GGUFFile
from penstock.formats.gguf_names import part_paths
from penstock.formats.gguf_split import open_gguf
from penstock.formats.gguf_types import READ_TYPES
from penstock.model.config import (
    EncoderConfig,
    GenerationDefaults,
    ModelConfig,
    WeightFiles,
)
from penstock.model.pooling_config import PoolingConfig
from penstock.prepare.chat_templates import template_of_gguf
from penstock.prepare.checkpoint import Checkpoint, check_token_ids
from penstock.prepare.gguf_config import read_config
from penstock.prepare.gguf_encoder import is_encoder, read_decoder_pooling, read_encoder
from penstock.prepare.gguf_tokenizer import BuiltTokenizer, build_tokenizer
from penstock.prepare.mmproj import read_mmproj


def read_gguf(path: Path, mmproj: Path | None = None) -> Checkpoint:
    """path: of the file, or of any part of a split one. mmproj: of the file with what the model
    sees with; None: it takes text only.

    Raises ModelNotFound if a part is missing, UnsupportedModel if the file is broken or of a kind
    that isn't served.
    """
    file = open_gguf(path)
    fields = Fields(file.metadata, str(path))
    config, pooling = _config(file)
    _check_tensors(file, config)
    tokenizer = build_tokenizer(file, encoder=isinstance(config, EncoderConfig))
    generation = _generation(fields, tokenizer)
    check_token_ids(generation, config, tokenizer.highest_id, str(path))
    media = None
    if mmproj is not None:
        if isinstance(config, EncoderConfig) or pooling is not None:
            raise UnsupportedModel(f"{mmproj}: a pooling model takes no pictures")
        config, media = read_mmproj(mmproj, config, tokenizer.json)
    return Checkpoint(
        config=config,
        generation=generation,
        weights=WeightFiles(
            format="gguf",
            files=tuple(map(str, part_paths(path))),
            dtype=_dtype(file),
            mmproj="" if mmproj is None else str(mmproj),
        ),
        tokenizer_json=tokenizer.json,
        chat_template=template_of_gguf(fields),
        add_bos=tokenizer.add_bos and generation.bos_token_id is not None,
        pooling=pooling,
        media=media,
    )


def _config(file: GGUFFile) -> tuple[ModelConfig | EncoderConfig, PoolingConfig | None]:
    if is_encoder(file):
        return read_encoder(file)
    config = read_config(file)
    return config, read_decoder_pooling(file, config)


def _check_tensors(file: GGUFFile, config: ModelConfig | EncoderConfig) -> None:
    """Refuses, before any process starts, what no worker could load."""
    for tensor in file.tensors.values():
        if tensor.type not in READ_TYPES:
            raise UnsupportedModel(
                f"{file.path}: tensor {tensor.name} is of type {tensor.type}, which is not served; "
                f"{', '.join(sorted(READ_TYPES))} are"
            )
    embedding = file.tensors.get("token_embd.weight")
    if embedding is not None and embedding.shape != (config.vocab_size, config.hidden_size):
        raise UnsupportedModel(
            f"{file.path}: token_embd.weight has shape {embedding.shape}; the metadata make it "
            f"{(config.vocab_size, config.hidden_size)}"
        )


def _generation(fields: Fields, tokenizer: BuiltTokenizer) -> GenerationDefaults:
    return GenerationDefaults(
        eos_token_ids=tokenizer.end_ids,
        bos_token_id=tokenizer.bos_id,
        temperature=fields.optional_number("general.sampling.temp"),
        top_p=fields.optional_number("general.sampling.top_p"),
        top_k=fields.optional_integer("general.sampling.top_k"),
        min_p=fields.optional_number("general.sampling.min_p"),
    )


def _dtype(file: GGUFFile) -> str:
    """The type that most bytes of the blocks' matrices have: what people call the file by."""
    sizes: Counter[str] = Counter()
    for name, tensor in file.tensors.items():
        if name.startswith("blk.") and len(tensor.shape) >= 2:
            sizes[tensor.type] += tensor.data.nbytes
    if not sizes:
        raise UnsupportedModel(f"{file.path} holds no layers (tensors named blk.*)")
    kind = sizes.most_common(1)[0][0]
    return FLOAT_DTYPES.get(kind, kind)
