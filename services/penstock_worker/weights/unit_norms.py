"""Weights of ones, for norms of queries and keys that have none in their file."""

from __future__ import annotations

import numpy as np

from penstock.model.config import ModelConfig
from penstock_worker.quantisation.plain import F32
from penstock_worker.weights.stored import StoredTensor


def add_unit_norms(tensors: dict[str, StoredTensor], config: ModelConfig) -> None:
    """Adds weights of ones, by our names, to the layers that normalise each head and have none.
    Modifies `tensors`."""
    for number in range(config.num_layers):
        if config.layer(number).attention.norm != "head":
            continue
        size = config.kv_heads(number).size
        ones = np.ones(size, np.float32).view(np.uint8)
        for which in "qk":
            name = f"layers.{number}.self_attn.{which}_norm.weight"
            tensors.setdefault(name, StoredTensor(name, (size,), F32.name, ones))
