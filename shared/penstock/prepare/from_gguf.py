"""A GGUF file as a Checkpoint."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families.bert_gguf import BERT_FILES
from penstock.families.finding import family_of_gguf
from penstock.families.gemma4_assistant import GGUF_ASSISTANT, read_gguf_assistant
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.hub_reading import refuse_unknown
from penstock.families.served import GGUF_ARCHITECTURES, GGUF_ENCODERS, MODEL_NAMES
from penstock.formats.fields import Fields, keys_below
from penstock.formats.float_types import FLOAT_DTYPES
from penstock.formats.gguf import READ_TYPES, GGUFFile
from penstock.formats.gguf_names import part_paths
from penstock.formats.gguf_split import open_gguf
from penstock.model.config import EncoderConfig, HeadConfig, ModelConfig
from penstock.model.pooling_config import PoolingConfig
from penstock.model.prepared_model import GenerationDefaults, WeightFiles
from penstock.prepare.chat_templates import template_of_gguf
from penstock.prepare.checkpoint import (
    Checkpoint,
    check_config,
    check_token_ids,
    head_checkpoint,
    odd_values_refused,
    stretched,
    suppressed,
)
from penstock.prepare.from_hub_folder import QWEN3
from penstock.prepare.gguf_encoders import (
    HARMLESS,
    LABELS,
    LAST,
    OUTER,
    RANK,
    is_encoder,
    read_encoder,
)
from penstock.prepare.gguf_tokenizer import BuiltTokenizer, build_tokenizer
from penstock.prepare.gguf_vocabulary import KEY
from penstock.prepare.mmproj import read_mmproj
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


# ModelConfig from the metadata of a GGUF file.
#
# Source of the keys: the GGUF specification in the ggml project (docs/gguf.md).


UNNAMED = "xielu."
"""Begins keys of architectures that don't have the architecture's name in front."""


def read_config(file: GGUFFile) -> ModelConfig:
    """Raises UnsupportedModel for another architecture, or for a variant of one of ours that can't
    be computed."""
    where = str(file.path)
    name = Fields(file.metadata, where).text("general.architecture")
    read = read_gguf_assistant if name == GGUF_ASSISTANT else _reader(name, where)
    begin = f"{name}."
    keys = Fields(
        {
            key.removeprefix(begin): value
            for key, value in file.metadata.items()
            if key.startswith((begin, UNNAMED))
        },
        f"{where}, {name}",
    )
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise UnsupportedModel(f"{where}: the tensor token_embd.weight is missing")
    with odd_values_refused(where):
        config = read(GGUFMetadata(keys, file.tensors, embedding.shape[0], name))
    _refuse_variants(keys)
    check_config(config, where)
    return stretched(config)


def _reader(name: str, where: str) -> Callable[[GGUFMetadata], ModelConfig]:
    family = family_of_gguf(name)
    if family is None:
        raise UnsupportedModel(
            f"{where}: the architecture {name!r} is not served; "
            f"GGUF files of {', '.join(GGUF_ARCHITECTURES)} are ({MODEL_NAMES}), and of the "
            f"encoders {', '.join((BERT_FILES, *GGUF_ENCODERS))}"
        )
    if family.read_gguf is None:
        raise UnsupportedModel(f"{where}: {family.known_as} can't be read from GGUF files")
    return family.read_gguf


def _refuse_variants(keys: Fields) -> None:
    if "attention.causal" in keys and not keys.flag("attention.causal"):
        raise UnsupportedModel(
            f"{keys.where}: models without causal attention are pooling models, "
            "which are not served yet"
        )
    window = keys.values.get("attention.sliding_window")
    if isinstance(window, int) and window >= keys.integer("context_length"):
        keys.ignore("attention.sliding_window")
    for key in ("logit_scale", "embedding_scale", "residual_scale", "attention.scale"):
        if keys.values.get(key) == 1.0:
            keys.ignore(key)
    refuse_unknown(keys, {*HARMLESS, LABELS})


RERANKS = "qwen3"
"""The architecture of files of Qwen3-Reranker."""
YES, NO = "yes", "no"


def read_decoder_pooling(file: GGUFFile, size: int) -> PoolingConfig | None:
    """None for a model that generates text. size: of its hidden states. Raises UnsupportedModel for
    another pooling than that of the last token, and for another reranker than Qwen3's."""
    name = Fields(file.metadata, str(file.path)).text("general.architecture")
    fields = keys_below(file.metadata, name, file.path)
    kind = fields.integer("pooling_type", 0)
    if kind == 0:
        return None
    if kind == RANK and name == RERANKS and OUTER in file.tensors:
        return _answers(file, fields, size)
    if kind != LAST:
        raise UnsupportedModel(
            f"{fields.where}: pooling_type {kind} over a decoder is not served; 3 (last token) is, "
            "and 4 (rank) in files of Qwen3-Reranker"
        )
    return PoolingConfig(mode="last", normalize=True, size=size)


def _answers(file: GGUFFile, fields: Fields, size: int) -> PoolingConfig:
    """A reranker that answers by two tokens, whose rows of the embedding are its head."""
    labels = fields.listed(LABELS, str) if LABELS in fields else [YES, NO]
    if labels != [YES, NO] or file.tensors[OUTER].shape != (2, size):
        raise UnsupportedModel(
            f"{fields.where}: {OUTER} of shape {file.tensors[OUTER].shape} for "
            f"{', '.join(map(str, labels))[:80]} is not served; rows for {YES} and {NO} are"
        )
    tokens = Fields(file.metadata, str(file.path)).listed(f"{KEY}tokens", str)
    for token in (YES, NO):
        if token not in tokens:
            raise UnsupportedModel(f"{file.path}: there is no token {token!r}")
    return PoolingConfig(
        mode="last",
        normalize=False,
        size=size,
        labels=(YES,),
        activation="sigmoid",
        answers=(tokens.index(NO), tokens.index(YES)),
        template=QWEN3,
    )
