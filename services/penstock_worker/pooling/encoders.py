"""Encoders as a Body: every work is a whole input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from penstock.families import ENCODERS
from penstock.model.config import EncoderConfig, PreparedModel
from penstock.protocol.to_worker import Setup, SlotWork
from penstock_worker.adapters.interface import ProductAdapters
from penstock_worker.adapters.rows import RowAdapters
from penstock_worker.batch.slots import PlanError, Slots
from penstock_worker.forward.layer_by_layer import LayerByLayer
from penstock_worker.pooling.adapters import PoolAdapters
from penstock_worker.pooling.encoder.gguf import encoder_gguf_tensors
from penstock_worker.pooling.encoder.layered import IN_TORCH, LayeredEncoder, LayeredKernels
from penstock_worker.pooling.encoder.model import EncoderModel
from penstock_worker.pooling.encoder.names import encoder_name, space_name
from penstock_worker.pooling.encoder.ops import EncoderOps
from penstock_worker.pooling.encoder.reference_ops import REFERENCE
from penstock_worker.pooling.heads import VECTORS, Head, HeadOps, encoder_head, vector_head
from penstock_worker.weights.family_names import by_our_names
from penstock_worker.weights.files import safetensors_tensors
from penstock_worker.weights.names import from_hub
from penstock_worker.weights.placing import CPU
from penstock_worker.weights.weights import Weights

HEADS = ("pooler.", "classifier.", "pre_classifier.", "head.", "decoder.")
"""How the names of a head's tensors begin."""


class Encoder(Protocol):
    """An encoder in torch."""

    @property
    def config(self) -> EncoderConfig: ...

    def hidden(
        self,
        tokens: np.ndarray,
        types: np.ndarray,
        lengths: list[int],
        layer_done: Callable[[], None],
    ) -> Tensor:
        """Returns hidden states (see EncoderModel.hidden)."""


class EncoderBody(LayerByLayer):
    """An encoder's layers."""

    def __init__(
        self, model: Encoder, adapters: PoolAdapters | None = None, rows: RowAdapters | None = None
    ) -> None:
        """`rows`: says to the model which of them have which of the adapters."""
        super().__init__()
        self._model = model
        self._adapters = adapters or PoolAdapters()
        self._rows = rows or RowAdapters()

    def rows(self, works: list[SlotWork], slots: Slots) -> list[Tensor]:
        inputs = inputs_of(works, slots, self._model.config)
        with self._rows.of(self._adapters.of_batch(works), np.array(inputs.lengths)):
            hidden = self._model.hidden(
                inputs.tokens, inputs.types, inputs.lengths, self._count_layer
            )
        return list(hidden[: len(inputs.tokens)].split(inputs.lengths))

    def kv_blocks(self) -> list[np.ndarray]:
        return []

    def count_layer(self) -> None:
        """Counts a layer that was computed beside the model's. Raises StepCancelled."""
        self._count_layer()


@dataclass(frozen=True)
class Inputs:
    """The inputs of one step."""

    tokens: np.ndarray
    """[tokens] int64, one input after another."""
    types: np.ndarray
    """[tokens] int64, the token type of each."""
    lengths: list[int]
    """Number of tokens of each input."""


def inputs_of(works: list[SlotWork], slots: Slots, config: EncoderConfig) -> Inputs:
    """Raises PlanError for an input that isn't computed whole, and ValueError for a token type that
    the model doesn't have."""
    tokens: list[int] = []
    types = bytearray()
    for work in works:
        slot = slots[work.slot]
        if work.start or work.count != len(slot.token_ids):
            raise PlanError(f"slot {work.slot}: an encoder's input is computed whole")
        given = slot.pooling.token_types if slot.pooling is not None else b""
        tokens += slot.token_ids
        types += given or bytes(work.count)
    known = np.frombuffer(types, dtype=np.uint8).astype(np.int64)
    most = config.token_types
    if most and known.size and int(known.max()) >= most:
        raise ValueError(f"a token type is {known.max()}; the model has {most}")
    return Inputs(np.array(tokens, dtype=np.int64), known, [work.count for work in works])


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
    files, family, pooling = prepared.weights.files, config.family, setup.pooling
    if config.layers is not None:
        names, name_of = ENCODERS[family].layer_names, from_hub
        if config.space is not None:
            name_of = space_name
        found = by_our_names(safetensors_tensors(files, name_of), names, config.layers)
    elif prepared.weights.format == "gguf":
        found = encoder_gguf_tensors(files)
    else:
        found = safetensors_tensors(files, lambda name: encoder_name(name, family))
    weights = Weights(found, dtype, device)
    head = None
    if config.space is not None:
        head = vector_head(config, config.space, weights, head_ops)
    elif pooling is not None and pooling.labels:
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
    ops: EncoderOps = REFERENCE,
    layered: LayeredKernels = IN_TORCH,
    head_ops: HeadOps = VECTORS,
    device: torch.device = CPU,
    adapters: ProductAdapters | None = None,
) -> tuple[Encoder, Head | None]:
    """Reads the weights to `device`. `layered`: the kernels of a model with a decoder's layers,
    `ops` those of any other. Returns the model and its head, as `open_encoder`. Raises
    UnsupportedModel for weights that don't fit the configuration."""
    config = prepared.config
    if not isinstance(config, EncoderConfig):
        raise TypeError(f"{type(config).__name__} is no encoder's")
    weights, head = open_encoder(prepared, config, setup, dtype, head_ops=head_ops, device=device)
    model: Encoder
    if config.layers is None:
        model = EncoderModel(config, weights, ops, longest=setup.max_model_len, adapters=adapters)
        weights.finish()
    else:
        model = LayeredEncoder(
            config, config.layers, weights, setup.max_model_len, adapters, layered
        )
    return model, head
