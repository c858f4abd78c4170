"""What adapters may change in pooling models: layers of decoders and of encoders, and heads."""

from __future__ import annotations

from functools import partial

import torch

from penstock.families.bert_gguf import BERT_FILES
from penstock.families.served import ENCODERS
from penstock.model.config import EncoderConfig, ModelConfig
from penstock.model.prepared_model import PreparedModel
from penstock.protocol.to_worker import Setup
from penstock_worker.adapters.adaptable import EMBEDDING, adaptable_ends, adaptable_modules
from penstock_worker.adapters.models import AdaptableModel, Renamed, adaptable_headless
from penstock_worker.forward.interface import Unable, require_adaptable
from penstock_worker.models.decoder import headless
from penstock_worker.pooling.adapters import ONE_TYPE, AdaptedPooling
from penstock_worker.pooling.encoder.names import HEADS, encoder_name
from penstock_worker.pooling.encoders import open_encoder
from penstock_worker.pooling.heads import VECTORS, Head, HeadOps, encoder_head, head_of
from penstock_worker.weights.family_names import by_our_names
from penstock_worker.weights.names import from_gguf
from penstock_worker.weights.opening import open_weights
from penstock_worker.weights.stored import StoredTensor
from penstock_worker.weights.weights import Weights


def adapted_decoder(
    prepared: PreparedModel, config: ModelConfig, setup: Setup, ops: HeadOps = VECTORS
) -> AdaptedPooling | None:
    """Returns None if the setup asks for no adapters. `ops` compute heads. Raises Unable for a
    model that they can change nothing in."""
    if not setup.max_loras:
        return None
    pooling = setup.pooling
    answers = pooling is not None and pooling.answers is not None
    labels = len(pooling.labels) if pooling is not None and not answers else 0
    model = adaptable_headless(
        config,
        labels=labels,
        answers=answers,
        takes_whole=setup.lora_whole_matrices,
        takes_experts=setup.lora_experts,
    )
    require_adaptable(config, setup)
    own = headless(config)
    return AdaptedPooling(
        model,
        partial(open_weights, prepared.weights, own, torch.float32),
        lambda weights: head_of(weights, config, pooling, ops),
    )


def adapted_encoder(
    prepared: PreparedModel, config: EncoderConfig, setup: Setup, ops: HeadOps = VECTORS
) -> AdaptedPooling | None:
    """Returns what adapted_decoder does, for an encoder."""
    if not setup.max_loras:
        return None
    pooling = setup.pooling
    labels = len(pooling.labels) if pooling is not None and not pooling.by_token else 0

    def weights() -> Weights:
        found, _ = open_encoder(prepared, config, setup, torch.float32)
        return found

    def head(own: Weights) -> Head | None:
        return encoder_head(config, own, labels, ops)

    return AdaptedPooling(adaptable_encoder(config, labels), weights, head)


def adaptable_encoder(config: EncoderConfig, labels: int) -> AdaptableModel:
    """`labels`: of its classification head; 0: it has none. Raises Unable for a model that adapters
    can change nothing in."""
    family = ENCODERS[config.family]
    heads, size = {}, config.hidden_size
    if labels and family.head is not None:
        heads = {family.head.inner: (size, size), family.head.outer: (labels, size)}
    modules = _modules(config)
    if not modules:
        raise Unable(f"no module of a {config.family} can be changed by adapters (enable_lora)")
    return AdaptableModel(
        name=config.family,
        modules=modules,
        renamed=_names(config),
        heads=heads,
        unused=() if labels else HEADS,
        gguf=_in_gguf(config),
    )


def _in_gguf(config: EncoderConfig) -> tuple[str, ...]:
    """Returns the values of general.architecture of files of this model."""
    family = ENCODERS[config.family]
    own = tuple(each for each in (family.gguf, *family.gguf_also) if each)
    return own or ((BERT_FILES,) if config.layers.is_like_bert else ())


def _modules(config: EncoderConfig) -> dict[str, tuple[int, int]]:
    layers = config.layers
    if config.space is not None:  # Vectors of pictures are in the same space as those of its texts.
        return {}
    # Layers would have to share factors, or distances to have them as well.
    if config.shared_layers or layers.disentangled is not None:
        return {}
    found = adaptable_modules(layers)
    if found and not layers.embedding_size:
        found[EMBEDDING] = adaptable_ends(layers)[EMBEDDING]
        if layers.token_types == 1:
            found[ONE_TYPE] = (layers.hidden_size, 1)
    return found


def _names(config: EncoderConfig) -> Renamed:
    """Returns the renaming that an encoder's checkpoint is read with."""
    layers, family = config.layers, ENCODERS[config.family]

    def renamed(stored: StoredTensor, name: str, format: str) -> dict[str, StoredTensor]:
        if format == "gguf":
            return by_our_names({from_gguf(name): stored}, family.gguf_names, layers)
        read = encoder_name(name, config.shared_layers)
        return {} if read is None else by_our_names({read: stored}, family.layer_names, layers)

    return renamed
