"""Tensors whose rows a file has head by head, where ours have thing by thing.

Qwen3-Next's attention has one projection of queries and gates: for each head its query, then its
gate. Its gated delta net has, for each key head, query, key, its value heads' values and their
gates; and in another projection, its value heads' strengths and their steps in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from penstock.errors import UnsupportedModel
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import LayerSpec
from penstock.model.recurrent_spec import GatedDeltaSpec
from penstock_worker.weights.stored import StoredTensor


def things_apart(
    stored: StoredTensor, module: str, config: ModelConfig, layer: LayerSpec
) -> StoredTensor:
    """Returns the tensor, [rows, ...], with its rows in our order. `module`: our name of it.
    Raises UnsupportedModel for another number of rows."""
    heads, sizes = _rows_of_a_head(module, config, layer)
    if not stored.shape or stored.shape[0] != heads * sum(sizes):
        raise UnsupportedModel(
            f"tensor {stored.name} has shape {stored.shape}; {heads} heads of "
            f"{' + '.join(map(str, sizes))} rows are expected"
        )
    return replace(stored, rearrange=partial(_by_thing, heads=heads, sizes=sizes))


def _rows_of_a_head(
    module: str, config: ModelConfig, layer: LayerSpec
) -> tuple[int, tuple[int, ...]]:
    """How many heads the rows belong to, and how many rows of each thing a head has."""
    part = module.rpartition(".")[2]
    if part == "q_and_gate_proj":
        return config.num_heads, (config.head_dim, config.head_dim)
    spec = layer.recurrent
    if not isinstance(spec, GatedDeltaSpec):
        raise UnsupportedModel(f"a layer without gated delta net has the tensor {module}")
    several = spec.value_heads // spec.key_heads
    if part == "in_proj_qkvz":
        values = several * spec.value_dim
        return spec.key_heads, (spec.key_dim, spec.key_dim, values, values)
    return spec.key_heads, (several, several)


def _by_thing(rows: Tensor, heads: int, sizes: Sequence[int]) -> Tensor:
    by_head = rows.unflatten(0, (heads, sum(sizes)))
    return torch.cat([thing.flatten(0, 1) for thing in by_head.split(list(sizes), 1)])
