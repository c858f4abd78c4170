"""What adapters may change in pooling models: layers of decoders and of encoders, and heads."""

from __future__ import annotations

import re
from functools import partial

import torch

from penstock.families import ENCODERS
from penstock.model.config import EncoderConfig, ModelConfig, PreparedModel
from penstock.protocol.to_worker import Setup
from penstock_worker.adapters.adaptable import EMBEDDING, adaptable_ends, adaptable_modules
from penstock_worker.adapters.models import AdaptableModel, Renamed, adaptable_headless
from penstock_worker.forward.interface import Unable, require_adaptable
from penstock_worker.models.decoder import headless
from penstock_worker.pooling.adapters import ONE_TYPE, AdaptedPooling
from penstock_worker.pooling.encoder.names import encoder_gguf_name, encoder_name, heads_apart
from penstock_worker.pooling.encoders import HEADS, open_encoder
from penstock_worker.pooling.heads import VECTORS, Head, HeadOps, encoder_head, head_of
from penstock_worker.weights.family_names import by_our_names
from penstock_worker.weights.names import from_hub
from penstock_worker.weights.opening import open_weights
from penstock_worker.weights.stored import StoredTensor
from penstock_worker.weights.weights import Weights

_WORDS = re.compile(r"^embeddings\.word_embeddings\.")


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
    modules = _layers(config)
    if not modules:
        raise Unable(f"no module of a {config.family} can be changed by adapters (enable_lora)")
    return AdaptableModel(
        name=config.family,
        modules=modules,
        renamed=_names(config),
        heads=heads,
        unused=() if labels else HEADS,
        gguf=("bert",) if config.layers is None else (),
    )


def _layers(config: EncoderConfig) -> dict[str, tuple[int, int]]:
    if config.space is not None:  # Vectors of pictures lie beside those of its texts.
        return {}
    if config.layers is not None:
        found = adaptable_modules(config.layers)
        if found:
            found[EMBEDDING] = adaptable_ends(config.layers)[EMBEDDING]
        return found
    if config.gated:  # Its matrices lie in pairs.
        return {}
    # Layers would have to share factors, or distances to have them as well.
    if config.shared_layers or config.disentangled is not None or config.experts is not None:
        return {}
    size, inner = config.hidden_size, config.intermediate_size
    shapes = {f"attention.self.{part}": (size, size) for part in ("query", "key", "value")}
    shapes["attention.output.dense"] = (size, size)
    shapes["intermediate.dense"] = (inner, size)
    shapes["output.dense"] = (size, inner)
    found = {
        f"encoder.layer.{number}.{name}": shape
        for number in range(config.num_layers)
        for name, shape in shapes.items()
    }
    if not config.embedding_size:
        found[EMBEDDING] = (size, config.vocab_size)
        if config.token_types == 1:
            found[ONE_TYPE] = (size, 1)
    return found


def _names(config: EncoderConfig) -> Renamed:
    """Returns the renaming that an encoder's checkpoint is read with."""
    layers, family = config.layers, ENCODERS[config.family]

    def renamed(stored: StoredTensor, name: str, format: str) -> dict[str, StoredTensor]:
        if layers is not None:
            read = from_hub(name)
            return {} if read is None else by_our_names({read: stored}, family.layer_names, layers)
        ours = encoder_gguf_name(name) if format == "gguf" else encoder_name(name, config.family)
        return {} if ours is None else heads_apart({_WORDS.sub(f"{EMBEDDING}.", ours): stored})

    return renamed
