"""Encoders as a Body: every work is a whole input."""

from __future__ import annotations

import threading

import numpy as np
from torch import Tensor

from penstock.model_config import PreparedModel
from penstock.protocol.to_worker import Setup, SlotWork
from penstock_worker.dtype import compute_dtype
from penstock_worker.encoder.model import EncoderModel
from penstock_worker.encoder.names import encoder_name
from penstock_worker.forward.interface import StepCancelled
from penstock_worker.pooling.heads import Head, encoder_head
from penstock_worker.slots import PlanError, Slots
from penstock_worker.weights.safetensors import safetensors_tensors
from penstock_worker.weights.weights import Weights


class EncoderBody:
    def __init__(self, model: EncoderModel) -> None:
        self.layers_done = 0
        self._lock = threading.Lock()
        self._cancelled = False
        self._model = model

    def rows(self, works: list[SlotWork], slots: Slots) -> list[Tensor]:
        tokens: list[int] = []
        types = bytearray()
        lengths: list[int] = []
        for work in works:
            slot = slots[work.slot]
            if work.start or work.count != len(slot.tokens):
                raise PlanError(f"slot {work.slot}: an encoder's input is computed whole")
            given = slot.pooling.token_types if slot.pooling is not None else b""
            tokens += slot.tokens
            types += given or bytes(work.count)
            lengths.append(work.count)
        hidden = self._model.hidden(
            np.array(tokens, dtype=np.int64),
            self._types(types),
            lengths,
            self._count_layer,
        )
        return list(hidden[: len(tokens)].split(lengths))

    def kv_blocks(self) -> list[np.ndarray]:
        return []

    def cancel(self) -> None:
        self._cancelled = True

    def _types(self, types: bytearray) -> np.ndarray:
        known = np.frombuffer(types, dtype=np.uint8).astype(np.int64)
        most = self._model.config.token_types
        if most and known.size and int(known.max()) >= most:
            raise ValueError(f"a token type is {known.max()}; the model has {most}")
        return known

    def _count_layer(self) -> None:
        if self._cancelled:
            raise StepCancelled
        with self._lock:
            self.layers_done += 1


def build_encoder(prepared: PreparedModel, setup: Setup) -> tuple[EncoderBody, Head | None]:
    """Reads the weights. Raises UnsupportedModel where they don't fit the configuration."""
    config, pooling = prepared.config, setup.pooling
    dtype = compute_dtype(setup.dtype, prepared.weights)
    family = config.family  # type: ignore[union-attr]
    tensors = safetensors_tensors(prepared.weights.files, lambda name: encoder_name(name, family))
    weights = Weights(tensors, dtype)
    model = EncoderModel(config, weights)  # type: ignore[arg-type]
    head = None
    if pooling is not None and pooling.labels:
        head = encoder_head(config, weights, len(pooling.labels))  # type: ignore[arg-type]
    # A head that isn't asked for, and BERT's pooler, which only its heads use.
    for name in tensors:
        if name.startswith(("pooler.", "classifier.", "pre_classifier.")):
            weights.ignore(name)
    weights.finish()
    return EncoderBody(model), head
