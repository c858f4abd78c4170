"""Tensors whose rows a file has head by head, where ours have thing by thing.

Qwen3-Next's attention has one projection of queries and gates: for each head its query, then its
gate. Its gated delta net has, for each key head, query, key, its value heads' values and their
gates; and in another projection, its value heads' strengths and their steps in time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate

import numpy as np

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


def _by_thing(rows: np.ndarray, heads: int, sizes: Sequence[int]) -> np.ndarray:
    by_head = rows.reshape(heads, sum(sizes), *rows.shape[1:])
    things = np.split(by_head, [*accumulate(sizes[:-1])], 1)
    return np.concatenate([thing.reshape(-1, *rows.shape[1:]) for thing in things])


def of_kv_heads(
    stored: StoredTensor, modules: tuple[str, str, str], config: ModelConfig
) -> Iterator[tuple[str, StoredTensor]]:
    """Yields queries, keys and values of a tensor, [rows, ...], that has those of a KV head
    together; `modules` are our names of them. Raises UnsupportedModel for another number of
    rows."""
    heads, dim = config.num_kv_heads, config.head_dim
    several = config.num_heads // heads
    rows = heads * (several + 2) * dim
    if not stored.shape or stored.shape[0] != rows or stored.made is not None:
        raise UnsupportedModel(
            f"tensor {stored.name} has shape {stored.shape} in the format {stored.format}; {rows} "
            "rows are expected, in one that has a row's numbers together"
        )
    firsts, counts = (0, several, several + 1), (several, 1, 1)
    for ours, first, count in zip(modules, firsts, counts, strict=True):
        of_each = partial(_of_each_head, parts=several + 2, heads=heads, part=(first, count))
        shape = (heads * count * dim, *stored.shape[1:])
        yield ours, replace(stored, shape=shape, made=of_each)


def _of_each_head(data: np.ndarray, heads: int, parts: int, part: tuple[int, int]) -> np.ndarray:
    """A tensor's bytes for some of the equal parts that each head has. part: the first, and how
    many."""
    first, count = part
    by_head = data.reshape(heads, parts, -1)[:, first : first + count]
    return np.ascontiguousarray(by_head).reshape(-1)
