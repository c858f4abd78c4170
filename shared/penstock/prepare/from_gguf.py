"""A GGUF file as a Checkpoint."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import msgspec

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.formats.float_types import FLOAT_DTYPES
from penstock.formats.gguf import GGUFFile
from penstock.formats.gguf_names import part_paths
from penstock.formats.gguf_split import open_gguf
from penstock.formats.gguf_types import READ_TYPES
from penstock.model.config import EncoderConfig, HeadConfig, ModelConfig
from penstock.model.pooling_config import PoolingConfig
from penstock.model.prepared_model import GenerationDefaults, WeightFiles
from penstock.prepare.chat_templates import template_of_gguf
from penstock.prepare.checkpoint import (
    Checkpoint,
    check_token_ids,
    head_checkpoint,
    suppressed,
)
from penstock.prepare.gguf_config import read_config, read_decoder_pooling
from penstock.prepare.gguf_encoders import (
    is_encoder,
    read_encoder,
)
from penstock.prepare.gguf_tokenizer import BuiltTokenizer, build_tokenizer
from penstock.prepare.mmproj.reading import read_mmproj
from penstock.prepare.overrides import overridden_metadata


def read_gguf(path: Path, mmproj: Path | None = None, overrides: str = "") -> Checkpoint:
    """path: of the file, or of any part of a split one. mmproj: of the file with the model's
    towers; None: it takes text only.  overrides: of its settings, see penstock.prepare.overrides.

    Raises ModelNotFound if a part is missing, UnsupportedModel if the file is broken or of a kind
    that isn't served.
    """
    file = open_gguf(path)
    file.metadata = overridden_metadata(file.metadata, overrides, str(path))
    fields = Fields(file.metadata, str(path))
    config, pooling = _config(file)
    _check_tensors(file, config)
    if isinstance(config, HeadConfig):
        files = tuple(map(str, part_paths(path)))
        return head_checkpoint(config, WeightFiles(format="gguf", files=files, dtype=_dtype(file)))
    tokenizer = build_tokenizer(file, encoder=isinstance(config, EncoderConfig))
    generation = msgspec.structs.replace(
        _generation(fields, tokenizer), suppress_tokens=suppressed(fields, SUPPRESSED, config)
    )
    check_token_ids(generation, config, tokenizer.highest_id, str(path))
    template, media = template_of_gguf(fields), None
    if mmproj is not None:
        if isinstance(config, EncoderConfig) or pooling is not None:
            raise UnsupportedModel(f"{mmproj}: a pooling model takes no pictures")
        config, media = read_mmproj(mmproj, config, tokenizer.json, template)
    return Checkpoint(
        config=config,
        generation=generation,
        weights=WeightFiles(
            format="gguf",
            files=tuple(map(str, part_paths(path))),
            dtype=_dtype(file),
            size=sum(tensor.data.nbytes for tensor in file.tensors.values()),
            numbers=sum(math.prod(tensor.shape) for tensor in file.tensors.values()),
            mmproj="" if mmproj is None else str(mmproj),
            mixture=_mixture(file),
        ),
        tokenizer_json=tokenizer.json,
        chat_template=template,
        add_bos=tokenizer.add_bos and generation.bos_token_id is not None,
        pooling=pooling,
        media=media,
    )


def _config(file: GGUFFile) -> tuple[ModelConfig | EncoderConfig, PoolingConfig | None]:
    if is_encoder(file):
        return read_encoder(file)
    config = read_config(file)
    return config, read_decoder_pooling(file, config.hidden_size)


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


SUPPRESSED = "tokenizer.ggml.suppress_tokens"


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


MIXTURES = {
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4_MOE",
    39: "NVFP4",
    40: "Q1_0",
}
"""Names of general.file_type's quantised values: ggml's docs/gguf.md, and llama.cpp's llama_ftype,
which has more. Those of floats are what writers put that know no better."""


def _mixture(file: GGUFFile) -> str:
    kind = file.metadata.get("general.file_type")
    return MIXTURES.get(kind, "") if isinstance(kind, int) else ""
