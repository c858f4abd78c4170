"""Pooling models in transformers' own code, on the CPU."""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.model.prepared_model import PreparedModel
from penstock.protocol.to_worker import Setup
from penstock_worker.forward import transformers as generating
from penstock_worker.forward.interface import require_no_adapters
from penstock_worker.parallel.ranks import ALONE, Ranks
from penstock_worker.pooling.decoders import decoder_recipe
from penstock_worker.pooling.recipe import PoolingRecipe


def recipe(
    prepared: PreparedModel, setup: Setup, threads: int, ranks: Ranks = ALONE
) -> PoolingRecipe:
    """Makes the recipe of a pooling model with the layers of a decoder, whose attention goes
    through transformers' interface. Raises Unable as the recipe for generating does."""
    require_no_adapters(setup)
    config = generating.described(prepared.decoder)
    if setup.pooling is not None and setup.pooling.answers is not None:
        raise UnsupportedModel(
            "scores by the logits of two tokens are computed for models of a family only, and this "
            "one runs in transformers' code"
        )
    return decoder_recipe(generating.recipe, prepared, config, setup, threads, ranks)
