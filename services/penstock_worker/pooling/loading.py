"""From the engine's Setup to a PoolingRunner."""

from __future__ import annotations

import torch

from penstock.errors import StartupError
from penstock.model_config import EncoderConfig, PreparedModel
from penstock.protocol.to_worker import Setup
from penstock_worker.block_copies import BlockCopies
from penstock_worker.dtype import cache_dtype, compute_dtype
from penstock_worker.memory import free_memory, kv_blocks
from penstock_worker.metrics.phases import Phases
from penstock_worker.pooling.body import Body
from penstock_worker.pooling.decoders import build_decoder
from penstock_worker.pooling.encoders import build_encoder
from penstock_worker.pooling.runner import PoolingRunner
from penstock_worker.slots import SlotBounds, Slots

BLOCKS_EACH = 3
"""An encoder's blocks are only the engine's count of sequences: one for each that runs, and what it
keeps free beside them."""


def load_pooling(
    prepared: PreparedModel, setup: Setup, threads: int, phases: Phases
) -> tuple[PoolingRunner, int, BlockCopies | None, str]:
    """(the runner, its number of KV blocks, the copies of them, the numerics). phases: what its
    parts are timed by.

    Raises UnsupportedModel or StartupError.
    """
    pooling = setup.pooling
    if pooling is None:
        raise ValueError("the setup is of a model that generates")
    if setup.quantization != "none":
        raise StartupError(f"quantization is {setup.quantization}; pooling models know only none")
    if setup.attention_backend not in ("auto", "reference"):
        raise StartupError(
            f"attention_backend is {setup.attention_backend!r}; pooling models are computed by the "
            "reference: allowed are auto, reference"
        )
    dtype = compute_dtype(setup.dtype, prepared.weights)
    name = str(dtype).removeprefix("torch.")
    numerics = f"pooling reference {name} torch {torch.__version__} {pooling}"
    body: Body
    copies = None
    if isinstance(prepared.config, EncoderConfig):
        body, head = build_encoder(prepared, setup)
        blocks = BLOCKS_EACH * setup.max_num_seqs
    else:
        block_bytes, with_blocks, head = build_decoder(prepared, setup)
        blocks = kv_blocks(
            block_bytes=block_bytes,
            fraction=setup.kv_memory_fraction,
            free=max(0, free_memory() - setup.host_kv_bytes),
            wanted=setup.num_kv_blocks,
            useful=setup.max_num_seqs * -(-setup.max_model_len // setup.block_size),
        )
        body = with_blocks(blocks)
        copies = BlockCopies(body.kv_blocks(), setup.host_kv_bytes // block_bytes)
        numerics += f" KV {cache_dtype(setup.kv_cache_dtype, dtype)}"
    bounds = SlotBounds(
        slots=setup.max_num_seqs,
        blocks=blocks,
        block_size=setup.block_size,
        vocab=prepared.config.vocab_size,
        tokens=setup.max_model_len,
    )
    runner = PoolingRunner(
        phases.watch(body, "rows", "forward"),
        head,
        pooling,
        Slots(bounds),
        copies=None if copies is None else phases.watch(copies, "make", "copies"),
        threads=threads,
    )
    return runner, blocks, copies, numerics
