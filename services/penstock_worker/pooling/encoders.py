"""Encoders as a Body: every work is a whole input."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from penstock.model_config import EncoderConfig, PreparedModel
from penstock.protocol.to_worker import Setup, SlotWork
from penstock_worker.batch.slots import PlanError, Slots
from penstock_worker.forward.layer_by_layer import LayerByLayer
from penstock_worker.pooling.encoder.gguf import encoder_gguf_tensors
from penstock_worker.pooling.encoder.model import EncoderModel
from penstock_worker.pooling.encoder.names import encoder_name
from penstock_worker.pooling.encoder.ops import EncoderOps
from penstock_worker.pooling.encoder.reference_ops import REFERENCE
from penstock_worker.pooling.heads import VECTORS, Head, HeadOps, encoder_head
from penstock_worker.weights.placing import CPU
from penstock_worker.weights.safetensors import safetensors_tensors
from penstock_worker.weights.weights import Weights


class EncoderBody(LayerByLayer):
    """An encoder's layers."""

    def __init__(self, model: EncoderModel) -> None:
        super().__init__()
        self._model = model

    def rows(self, works: list[SlotWork], slots: Slots) -> list[Tensor]:
        inputs = inputs_of(works, slots, self._model.config)
        hidden = self._model.hidden(inputs.tokens, inputs.types, inputs.lengths, self._count_layer)
        return list(hidden[: len(inputs.tokens)].split(inputs.lengths))

    def kv_blocks(self) -> list[np.ndarray]:
        return []


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


def build_encoder(
    prepared: PreparedModel,
    setup: Setup,
    dtype: torch.dtype,
    *,
    ops: EncoderOps = REFERENCE,
    head_ops: HeadOps = VECTORS,
    device: torch.device = CPU,
) -> tuple[EncoderModel, Head | None]:
    """Reads the weights to `device`. Returns the model and its classification head. Raises
    UnsupportedModel for weights that don't fit the configuration."""
    config, pooling = prepared.config, setup.pooling
    if not isinstance(config, EncoderConfig):
        raise TypeError(f"{type(config).__name__} is no encoder's")
    family = config.family
    files = prepared.weights.files
    if prepared.weights.format == "gguf":
        tensors = encoder_gguf_tensors(files)
    else:
        tensors = safetensors_tensors(files, lambda name: encoder_name(name, family))
    weights = Weights(tensors, dtype, device)
    model = EncoderModel(config, weights, ops)
    head = None
    if pooling is not None and pooling.labels:
        head = encoder_head(config, weights, len(pooling.labels), head_ops)
    # A head that isn't requested, and BERT's pooler, which only heads use.
    for name in tensors:
        if name.startswith(("pooler.", "classifier.", "pre_classifier.")):
            weights.ignore(name)
    weights.finish()
    return model, head
