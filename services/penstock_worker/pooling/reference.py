"""Pooling models on the reference kernels: plain torch on the CPU."""

from __future__ import annotations

import torch

from penstock.model.config import EncoderConfig
from penstock.model.prepared_model import PreparedModel
from penstock.protocol.to_worker import Setup
from penstock_worker.adapters.rows import RowAdapters, TorchAdapters
from penstock_worker.dtype import compute_dtype
from penstock_worker.forward import reference as generating
from penstock_worker.metrics.phases import Phases
from penstock_worker.parallel.ranks import ALONE, Ranks
from penstock_worker.pooling.adaptable import adapted_encoder
from penstock_worker.pooling.adapters import PoolAdapters
from penstock_worker.pooling.bodies import Encoder
from penstock_worker.pooling.decoders import decoder_recipe
from penstock_worker.pooling.encoders import TorchEncoder, build_encoder, load_encoder
from penstock_worker.pooling.heads import Head
from penstock_worker.pooling.pool import pooled_by
from penstock_worker.pooling.recipe import PoolingParts, PoolingRecipe, pooling_fingerprint
from penstock_worker.pooling.space import Pictures


def require_encoder(config: EncoderConfig, setup: Setup) -> None:
    """Raises Unable for an encoder that this backend can't run: there is none."""


def recipe(
    prepared: PreparedModel, setup: Setup, threads: int, ranks: Ranks = ALONE
) -> PoolingRecipe:
    """Makes the recipe of any pooling model but those that transformers' code computes. Raises
    StartupError for settings that no backend can follow."""
    config = prepared.config
    if not isinstance(config, EncoderConfig):
        return decoder_recipe(generating.recipe, prepared, config, setup, threads, ranks)
    if setup.pooling is None:
        raise ValueError("the setup is of a model that generates")
    mode, dtype = setup.pooling.mode, compute_dtype(setup.dtype, prepared.weights)
    adapted = adapted_encoder(prepared, config, setup)
    name = str(dtype).removeprefix("torch.")

    def load(phases: Phases) -> PoolingParts:
        rows, adapters = RowAdapters(), PoolAdapters()
        if adapted is not None:
            adapters = adapted.steps(TorchAdapters(adapted.model, setup, dtype), setup)

        def build() -> tuple[Encoder, Head | None]:
            own = None if adapted is None else rows
            model, head = build_encoder(prepared, setup, dtype, adapters=own)
            return TorchEncoder(model, rows.of), head

        return load_encoder(
            prepared,
            setup,
            phases,
            build,
            pool=pooled_by(mode),
            pictures=Pictures(prepared, setup, dtype, threads),
            adapters=adapters,
            shares=threads,
        )

    fingerprint = f"pooling reference {name} torch {torch.__version__} {pooling_fingerprint(setup)}"
    return PoolingRecipe("reference", name, "cpu", fingerprint, load)
