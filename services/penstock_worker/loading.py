"""From the engine's Setup to a Runner."""

from __future__ import annotations

import time
from dataclasses import dataclass

import msgspec
import torch

from penstock import logs
from penstock.errors import StartupError
from penstock.model_config import ModelConfig, PreparedModel
from penstock.prepare import load_manifest
from penstock.protocol.from_worker import Ready
from penstock.protocol.to_worker import Setup
from penstock_worker.attention import backend_class
from penstock_worker.attention.interface import AttentionBackend, CacheShape
from penstock_worker.cpu import usable_threads
from penstock_worker.dtype import compute_dtype
from penstock_worker.fingerprint import fingerprint
from penstock_worker.memory import free_memory, kv_blocks
from penstock_worker.models import model_class
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.runner import Runner
from penstock_worker.slots import SlotBounds, Slots
from penstock_worker.weights import open_weights

log = logs.get(__name__)


@dataclass(frozen=True)
class Loaded:
    """setup: what was asked.  ready: what the engine is told."""

    setup: Setup
    runner: Runner
    ready: Ready


def load(setup: Setup) -> Loaded:
    """Weights, then the KV pool from the memory that is left.

    Raises ModelNotFound, UnsupportedModel or StartupError: what a restart doesn't mend.
    """
    begun = time.monotonic()
    threads = setup.threads or usable_threads()
    torch.set_num_threads(1)  # The runner's threads each compute alone.
    prepared = load_manifest(setup.model_dir)
    dtype = compute_dtype(setup.dtype, prepared.weights)
    backend = backend_class(setup.attention_backend)
    with torch.inference_mode():
        model = _load_model(prepared, dtype, setup.max_model_len)
        attention, blocks = _make_cache(backend, prepared.config, dtype, setup)
    bounds = SlotBounds(
        slots=setup.max_num_seqs,
        blocks=blocks,
        block_size=setup.block_size,
        vocab=prepared.config.vocab_size,
        tokens=setup.max_model_len,
    )
    ready = Ready(
        num_kv_blocks=blocks,
        device="cpu",
        fingerprint=fingerprint(digest=prepared.digest, dtype=dtype, backend=backend.name),
        load_seconds=time.monotonic() - begun,
    )
    log.info(
        "model loaded",
        model=prepared.name,
        dtype=str(dtype).removeprefix("torch."),
        stored=prepared.weights.dtype,
        backend=backend.name,
        threads=threads,
        kv_blocks=blocks,
        seconds=ready.load_seconds,
    )
    return Loaded(setup, Runner(model, attention, Slots(bounds), threads=threads), ready)


def same_model(loaded: Loaded, setup: Setup) -> bool:
    """Whether what is loaded serves this setup as it is."""
    return msgspec.structs.replace(setup, version=loaded.setup.version) == loaded.setup


def _load_model(prepared: PreparedModel, dtype: torch.dtype, positions: int) -> DecoderModel:
    config = prepared.config
    family = model_class(config.architecture)
    try:
        return family(config, open_weights(prepared.weights, config, dtype), positions)
    except (MemoryError, RuntimeError) as error:
        raise StartupError(f"not enough memory for the weights: {error}") from error


def _make_cache(
    backend: type[AttentionBackend], config: ModelConfig, dtype: torch.dtype, setup: Setup
) -> tuple[AttentionBackend, int]:
    shape = CacheShape(
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        block_size=setup.block_size,
        dtype=dtype,
    )
    blocks = kv_blocks(
        block_bytes=backend.block_bytes(shape),
        fraction=setup.kv_memory_fraction,
        free=free_memory(),
        wanted=setup.num_kv_blocks,
        useful=setup.max_num_seqs * -(-setup.max_model_len // setup.block_size),
    )
    try:
        return backend(shape, blocks), blocks
    except (MemoryError, RuntimeError) as error:
        raise StartupError(f"not enough memory for {blocks} KV blocks: {error}") from error
