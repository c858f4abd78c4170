"""What stands in for tensors that a file lacks: norms of ones, biases of zeros."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from penstock.model.config import ModelConfig
from penstock_worker.quantisation.interface import F32
from penstock_worker.weights.stored import StoredTensor


def add_unit_norms(tensors: dict[str, StoredTensor], config: ModelConfig) -> None:
    """Adds weights of ones, by our names, to the layers that normalise each head and have none,
    and to the norm of embeddings. Modifies `tensors`."""
    for number in range(config.num_layers):
        if config.layer(number).attention.norm == "head":
            for which in "qk":
                name = f"layers.{number}.self_attn.{which}_norm.weight"
                _add_ones(tensors, name, config.kv_heads(number).size)
    if config.embedding_norm:
        _add_ones(tensors, "embedding_norm.weight", config.hidden_size)


def add_units(tensors: dict[str, StoredTensor], config: ModelConfig) -> None:
    """Adds weights of ones, by our names, to the norms of residuals, of a family whose norms have
    none. Modifies `tensors`."""
    names = ["norm"]
    for number in range(config.num_layers):
        names += [f"layers.{number}.{each}" for each in (INPUT_NORM, SECOND_NORM)]
    for name in names:
        _add_ones(tensors, f"{name}.weight", config.hidden_size)


def _add_ones(tensors: dict[str, StoredTensor], name: str, size: int) -> None:
    ones = np.ones(size, np.float32).view(np.uint8)
    tensors.setdefault(name, StoredTensor(name, (size,), F32.name, ones))


INPUT_NORM, SECOND_NORM = "input_layernorm", "post_attention_layernorm"
_WEIGHT = re.compile(r"layers\.\d+\.(?P<module>.+)\.weight")


def add_zero_biases(tensors: dict[str, StoredTensor], modules: Sequence[str]) -> None:
    """Adds zeros for the biases that these modules of every layer lack, by our names. Modifies
    `tensors`."""
    for name, stored in list(tensors.items()) if modules else ():
        match = _WEIGHT.fullmatch(name)
        if match is None or match["module"] not in modules or not stored.shape:
            continue
        bias, rows = f"{name.removesuffix('weight')}bias", stored.shape[0]
        zeros = np.zeros(rows, np.float32).view(np.uint8)
        tensors.setdefault(bias, StoredTensor(bias, (rows,), F32.name, zeros))
