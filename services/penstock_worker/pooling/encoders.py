"""How encoders are loaded."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import numpy as np
import torch
from torch import Tensor

from penstock.families.served import ENCODERS
from penstock.model.config import EncoderConfig
from penstock.model.prepared_model import PreparedModel
from penstock.protocol.to_worker import Setup
from penstock_worker.adapters.interface import BatchAdapters, ProductAdapters
from penstock_worker.forward.layer_by_layer import LayerByLayer
from penstock_worker.metrics.phases import Phases
from penstock_worker.pooling.adapters import PoolAdapters
from penstock_worker.pooling.bodies import Body, Encoder, EncoderBody, Inputs, PoolInputs
from penstock_worker.pooling.encoder.kernels import EncoderKernels, ReferenceKernels
from penstock_worker.pooling.encoder.lacking_names import encoder_file_name
from penstock_worker.pooling.encoder.model import EncoderModel
from penstock_worker.pooling.encoder.names import HEADS, encoder_name, space_name, with_head
from penstock_worker.pooling.heads import VECTORS, Head, HeadOps, encoder_head, vector_head
from penstock_worker.pooling.pooler import pooling_runner
from penstock_worker.pooling.recipe import BLOCKS_EACH, PoolingParts
from penstock_worker.pooling.space import Pictures, SpaceBody
from penstock_worker.weights.family_names import by_our_names
from penstock_worker.weights.files import safetensors_tensors
from penstock_worker.weights.gguf_files import gguf_by_our_names, named_tensors
from penstock_worker.weights.weights import Weights

CPU = torch.device("cpu")

Adding = Callable[[BatchAdapters | None, np.ndarray], AbstractContextManager[None]]
"""Returns a context in which products add the adapters of inputs of these lengths."""


class TorchEncoder(LayerByLayer):
    """An Encoder that is a model in torch."""

    def __init__(self, model: EncoderModel, adding: Adding) -> None:
        super().__init__()
        self._model = model
        self._adding = adding

    @property
    def config(self) -> EncoderConfig:
        return self._model.config

    def rows(self, inputs: Inputs, adapters: BatchAdapters | None) -> Tensor:
        lengths = inputs.lengths
        with self._adding(adapters, np.array(lengths, dtype=np.int32)):
            return self._model.hidden(
                inputs.tokens, inputs.types, lengths, self._count_layer, inputs.seen
            )

    def count_layer(self) -> None:
        """Counts a layer that isn't one of the model's. Raises StepCancelled."""
        self._count_layer()


def open_encoder(
    prepared: PreparedModel,
    config: EncoderConfig,
    setup: Setup,
    dtype: torch.dtype,
    *,
    head_ops: HeadOps = VECTORS,
    device: torch.device = CPU,
) -> tuple[Weights, Head | None]:
    """Returns the weights, of which the head has been taken, and that: one for classes, or what
    makes the vector of a text where pictures have one, too. Raises UnsupportedModel for tensors of
    it that don't fit."""
    files, family, pooling = prepared.weights.files, ENCODERS[config.family], setup.pooling
    if prepared.weights.format == "gguf":
        found = gguf_by_our_names(named_tensors(files), family.gguf_names, config.layers)
        found = {with_head(name, family.head): each for name, each in found.items()}
    else:
        name_of = partial(encoder_name, shared=config.shared_layers)
        read = safetensors_tensors(files, name_of if config.space is None else space_name)
        found = by_our_names(read, family.layer_names, config.layers)
    weights = Weights(found, dtype, device).calling(
        partial(encoder_file_name, tensors=found, config=config, format=prepared.weights.format)
    )
    head = None
    if config.space is not None:
        head = vector_head(config, config.space, weights, head_ops)
    elif pooling is not None and pooling.labels and not pooling.by_token:
        head = encoder_head(config, weights, len(pooling.labels), head_ops)
    # A head that isn't requested, and BERT's pooler, which only heads use.
    for name in found:
        if name.startswith(HEADS):
            weights.ignore(name)
    return weights, head


def build_encoder(
    prepared: PreparedModel,
    setup: Setup,
    dtype: torch.dtype,
    *,
    kernels: EncoderKernels | None = None,
    head_ops: HeadOps = VECTORS,
    device: torch.device = CPU,
    adapters: ProductAdapters | None = None,
) -> tuple[EncoderModel, Head | None]:
    """Reads the weights to `device`. `kernels`: None for those in plain torch. Returns the model
    and its head, as `open_encoder`. Raises UnsupportedModel for weights that don't fit the
    configuration."""
    config = prepared.config
    if not isinstance(config, EncoderConfig):
        raise TypeError(f"{type(config).__name__} is no encoder's")
    weights, head = open_encoder(prepared, config, setup, dtype, head_ops=head_ops, device=device)
    kernels = kernels or ReferenceKernels(config.layers)
    model = EncoderModel(config, weights, kernels, longest=setup.max_model_len, adapters=adapters)
    return model, head


def load_encoder(
    prepared: PreparedModel,
    setup: Setup,
    phases: Phases,
    build: Callable[[], tuple[Encoder, Head | None]],
    *,
    pool: PoolInputs,
    pictures: Pictures,
    adapters: PoolAdapters,
    device: torch.device = CPU,
    shares: int | None,
    profile: Callable[[EncoderBody, Head | None], None] = lambda body, head: None,
) -> PoolingParts:
    """`build`: reads the weights, and returns the layers and the head. `shares`: as of
    pooling_runner. `profile`: runs the largest steps. Raises torch.OutOfMemoryError."""
    encoder, head = build()
    body = EncoderBody(encoder, pool, device, adapters)
    space = pictures.load(head, body.count_layer)
    profile(body, head)
    whole: Body = body
    if space is not None:
        whole, head = SpaceBody(body, space), None
    blocks, media = BLOCKS_EACH * setup.max_num_seqs, pictures.held
    runner = pooling_runner(
        prepared, setup, whole, head, blocks, phases, shares=shares, media=media, adapters=adapters
    )
    return PoolingParts(runner, blocks, media=media)
