"""ModelConfig from the metadata of a GGUF file.

Source of the keys: the GGUF specification in the ggml project (docs/gguf.md).
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.errors import UnsupportedModel
from penstock.families.bert_gguf import BERT_FILES
from penstock.families.finding import family_of_gguf
from penstock.families.gemma4_assistant import GGUF_ASSISTANT, read_gguf_assistant
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.hub_reading import refuse_unknown
from penstock.families.served import GGUF_ARCHITECTURES, GGUF_ENCODERS, MODEL_NAMES
from penstock.formats.fields import Fields, keys_below
from penstock.formats.gguf import GGUFFile
from penstock.model.config import ModelConfig
from penstock.model.pooling_config import PoolingConfig
from penstock.prepare.checkpoint import (
    check_config,
    odd_values_refused,
    stretched,
)
from penstock.prepare.gguf_encoders import (
    HARMLESS,
    LABELS,
    LAST,
    OUTER,
    RANK,
)
from penstock.prepare.gguf_vocabulary import KEY
from penstock.prepare.rerankers import QWEN3

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
