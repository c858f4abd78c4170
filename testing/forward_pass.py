"""The worker's forward pass on the CPU kernels by itself, with batches made by hand."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from penstock.model.prepared_model import PreparedModel
from penstock.protocol.to_worker import Setup
from penstock_worker.forward.backends import choose
from penstock_worker.forward.interface import Batch, Recipe

BLOCK = 16
"""Tokens of a KV block."""


def recipe_of(
    prepared: PreparedModel,
    threads: int,
    *,
    sequences: int,
    step_tokens: int,
    context: int,
    **more: Any,
) -> Recipe:
    """Returns a recipe for steps of so many sequences and tokens at most, each with so many tokens
    of context. more: other fields of Setup."""
    setup = Setup(
        version=1,
        model_dir="",
        dtype="auto",
        attention_backend="cpu",
        threads=threads,
        block_size=BLOCK,
        num_kv_blocks=None,
        kv_memory_fraction=0.4,
        max_num_seqs=sequences,
        max_num_batched_tokens=step_tokens,
        max_model_len=context,
    )
    return choose(prepared, msgspec.structs.replace(setup, **more), threads)


def blocks_of(tokens: int) -> int:
    """KV blocks of a sequence with so many."""
    return -(-tokens // BLOCK)


def sequences_of(
    tokens: np.ndarray,
    count: int = 1,
    start: int = 0,
    *,
    room: int = 0,
    first_block: int = 0,
    **more: Any,
) -> Batch:
    """A step of `count` sequences that have `start` tokens in the cache, and an equal part of
    `tokens` to compute. Each has blocks of its own from `first_block` on, for its tokens so far or
    for `room` of them. more: other fields."""
    rows = len(tokens) // count
    each = blocks_of(max(start + rows, room))
    tables = first_block + np.arange(count * each).reshape(count, each)
    whole = {"starts": np.full(count, start), "counts": np.full(count, rows)}
    return Batch(tokens=tokens, tables=list(tables), **whole, **more)
