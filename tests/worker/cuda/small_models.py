"""Models that Triton's interpreter gets through in a moment, and batches for them."""

from __future__ import annotations

import functools
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from penstock.model.config import ModelConfig
from penstock.model.prepared_model import PreparedModel
from penstock.protocol.to_worker import Setup
from penstock_worker.attention.interface import CacheShape
from penstock_worker.attention.reference import ReferenceAttention
from penstock_worker.attention.triton import TritonAttention
from penstock_worker.device.memory import memory_of
from penstock_worker.forward.interface import Batch, DeviceRecipe
from penstock_worker.forward.queued import TritonForward
from penstock_worker.forward.reference import ReferenceForward
from penstock_worker.forward.triton_limits import attention_of
from penstock_worker.layers.parts import DecoderOps
from penstock_worker.layers.reference_ops import REFERENCE
from penstock_worker.loading import load as loading
from penstock_worker.loading.device import device_parts
from penstock_worker.loading.loaded import Loaded
from penstock_worker.metrics.phases import Unwatched
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.parallel.ranks import ALONE, Ranks
from penstock_worker.weights.opening import open_weights
from testing.model_configs import varied
from tests.interpreted_triton import DEVICE
from tests.worker.checkpoints import TINY, tiny_files

BLOCK, BLOCKS, POSITIONS, SLOTS = 4, 24, 640, 6

GROUPED = varied(TINY, vocab_size=97, hidden_size=64, num_heads=4, num_kv_heads=2, head_dim=16)
NORMED = varied(
    TINY,
    architecture="qwen3",
    qk_norm=True,
    vocab_size=97,
    num_heads=3,
    num_kv_heads=1,
    tie_word_embeddings=True,
)
"""Sizes that no tile divides."""


@functools.cache
def small_model(
    config: ModelConfig, device: torch.device = DEVICE, ops: DecoderOps | None = None
) -> DecoderModel:
    """ops: None: the reference's, whose rows have the same bits in any company."""
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        weights = open_weights(
            tiny_files(Path(folder), config), config, torch.float32, device=device
        )
        return DecoderModel(config, weights, POSITIONS, ops or REFERENCE)


def cache_shape(config: ModelConfig, dtype: torch.dtype = torch.float32) -> CacheShape:
    return CacheShape.of(config, BLOCK, dtype)


def queued(config: ModelConfig, cache: torch.dtype = torch.float32) -> TritonForward:
    """Its cache is not-a-number wherever nobody wrote."""
    choices = attention_of(config, (torch.float32,), batch_invariant=False)
    with torch.inference_mode():
        attention = TritonAttention(cache_shape(config, cache), BLOCKS, DEVICE, choices)
        attention.cache.view(torch.uint8).fill_(255)
        model = small_model(config)
        return TritonForward(model, attention, DEVICE, slots=SLOTS, memory=memory_of(DEVICE))


def reference(config: ModelConfig) -> ReferenceForward:
    shape = cache_shape(config)
    model = small_model(config, torch.device("cpu"))
    return ReferenceForward(model, ReferenceAttention(shape, BLOCKS))


def batch(*works: tuple[list[int], list[int], int]) -> Batch:
    """The batch of (new tokens, all blocks, tokens before) of each sequence."""
    return Batch(
        tokens=np.array([token for tokens, _, _ in works for token in tokens], dtype=np.int64),
        tables=[np.array(table, dtype=np.int64) for _, table, _ in works],
        starts=np.array([start for _, _, start in works]),
        counts=np.array([len(tokens) for tokens, _, _ in works]),
    )


def prompt(config: ModelConfig, length: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, config.vocab_size, length).tolist()


def load_on_device(
    recipe: DeviceRecipe, prepared: PreparedModel, setup: Setup, ranks: Ranks = ALONE
) -> Loaded:
    """Loads a model without drafts as a worker does once it has chosen a device's recipe."""
    grammars, begun = loading._grammars(prepared, setup, ranks), time.monotonic()
    parts = device_parts(recipe, setup, None, prepared.config.vocab_size, Unwatched(), ranks)
    return loading.assembled(parts, recipe, None, prepared, grammars, setup, begun, ranks)
