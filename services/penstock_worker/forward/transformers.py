"""The transformers backend: its modelling code for decoders that no family describes, on the CPU,
with the reference backend's attention and products."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from penstock.model import mechanisms as mechanism
from penstock.model.config import ModelConfig, TransformersConfig
from penstock.model.prepared_model import PreparedModel
from penstock.process import logs
from penstock.protocol.to_worker import Setup
from penstock_worker.attention.interface import BatchLayout, CacheShape
from penstock_worker.attention.reference import ReferenceAttention
from penstock_worker.by_transformers.loading import load_model
from penstock_worker.by_transformers.model import LibraryModel
from penstock_worker.by_transformers.model_class import library, model_class
from penstock_worker.by_transformers.paged import LayerFacts, PagedStep
from penstock_worker.by_transformers.rehearsal import rehearse
from penstock_worker.dtype import cache_dtype, compute_dtype
from penstock_worker.forward.interface import Batch, Forward, Recipe, Unable, require_no_adapters
from penstock_worker.forward.layer_by_layer import LayerByLayer
from penstock_worker.forward.purpose import LOGITS, Purpose
from penstock_worker.parallel.ranks import ALONE, Ranks
from penstock_worker.weights.files import safetensors_tensors
from penstock_worker.weights.weights import Weights

log = logs.get(__name__)

MECHANISMS = frozenset({mechanism.BY_TRANSFORMERS})


class TransformersForward(LayerByLayer):
    """The forward pass in transformers' code."""

    def __init__(
        self, model: LibraryModel, attention: ReferenceAttention, facts: LayerFacts
    ) -> None:
        super().__init__()
        self._model = model
        self._attention = attention
        self._facts = facts

    def kv_blocks(self) -> list[np.ndarray]:
        return self._attention.kv_blocks()

    def logits(self, batch: Batch, rows: np.ndarray) -> Tensor:
        """Logits as Forward has them; of a model without its head, hidden vectors."""
        layout = BatchLayout(batch.tables, batch.starts, batch.counts)
        shape = self._attention.shape
        step = PagedStep(self._attention.plan(layout), shape, self._facts, self._count_layer)
        return self._model.outputs(
            torch.from_numpy(batch.tokens),
            torch.from_numpy(layout.positions),
            step,
            torch.from_numpy(rows),
        )


def described(config: ModelConfig) -> TransformersConfig:
    """Raises Unable for a model that a family describes."""
    if not isinstance(config, TransformersConfig):
        raise Unable("a family describes the model; --model-impl transformers would take this code")
    return config


def load_forward(
    prepared: PreparedModel, setup: Setup, shape: CacheShape, *, headless: bool = False
) -> Callable[[int], Forward]:
    """Reads the weights and tries the model. Returns what makes the Forward for a number of blocks.
    Raises UnsupportedModel."""
    config = described(prepared.decoder)
    dtype = compute_dtype(setup.dtype, prepared.weights)
    read = load_model(config, prepared.weights, dtype, setup.max_model_len, headless=headless)
    model = LibraryModel(read, headless=headless)
    facts, same_bits = rehearse(model, shape, config.vocab_size)
    if not same_bits:
        log.warning(
            "with this model, the last bits of outputs depend on what else is in the batch",
            architecture=config.architecture,
        )
    return lambda blocks: TransformersForward(model, ReferenceAttention(shape, blocks), facts)


def cache_shape(prepared: PreparedModel, setup: Setup) -> CacheShape:
    dtype = compute_dtype(setup.dtype, prepared.weights)
    cache = cache_dtype(setup.kv_cache_dtype, dtype)
    return CacheShape.of(prepared.decoder, setup.block_size, cache)


def _computing_in(
    prepared: PreparedModel, setup: Setup, ranks: Ranks, *, headless: bool
) -> tuple[str, str]:
    """Returns the dtype's name and the fingerprint. Raises what `recipe` does."""
    config = described(prepared.decoder)
    if setup.quantization != "none":
        raise Unable(f"quantization is {setup.quantization}, and products are of floats only")
    if setup.load_format != "auto":
        raise Unable(f"load_format is {setup.load_format}; it computes with a checkpoint's weights")
    if ranks.place.ranks > 1:
        raise Unable("the model can't be split over several ranks")
    require_no_adapters(setup)
    model_class(config, headless=headless)
    dtype = compute_dtype(setup.dtype, prepared.weights)
    shape = cache_shape(prepared, setup)
    name, stored = (str(each).removeprefix("torch.") for each in (dtype, shape.dtype))
    version = library().__version__
    log.warning(
        "transformers' own code computes this model: slower than a family's, on the CPU, and with "
        "a fingerprint of its own",
        architecture=config.architecture,
        transformers=version,
    )
    return name, f"transformers {version} {name} KV {stored} torch {torch.__version__}"


def recipe(
    prepared: PreparedModel,
    setup: Setup,
    threads: int,
    ranks: Ranks = ALONE,
    purpose: Purpose = LOGITS,
) -> Recipe:
    """The recipe for a decoder with attention through transformers' interface. Raises Unable for a
    model that a family describes, for a quantization, for several ranks, and without transformers;
    and UnsupportedModel for a class that can't be served."""
    headless = purpose.headless
    name, fingerprint = _computing_in(prepared, setup, ranks, headless=headless)
    shape = cache_shape(prepared, setup)

    def build() -> Callable[[int], Forward]:
        purpose.take(Weights(safetensors_tensors(prepared.weights.files, str), torch.float32))
        return load_forward(prepared, setup, shape, headless=headless)

    return Recipe(
        backend="transformers",
        dtype=name,
        fingerprint=fingerprint,
        block_bytes=ReferenceAttention.block_bytes(shape),
        kv_groups=shape.groups,
        threads_by_share=True,
        build=build,
    )
