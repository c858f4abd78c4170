"""Pooling models on the CPU kernels: encoders and decoders as programs of the C++ library.

Dtypes are those of `forward.cpu`. Keys and values of an encoder are float32 whatever its weights
are, as nothing is kept of them.
"""

from __future__ import annotations

import msgspec
import torch

from penstock.model.config import EncoderConfig
from penstock.model.mechanisms import ONE_HALF, mechanisms
from penstock.model.prepared_model import PreparedModel
from penstock.protocol.to_worker import Setup
from penstock_kernels.cpu.library import bits, instruction_set
from penstock_worker.forward.cpu import backend as generating
from penstock_worker.forward.cpu.adapters import PackedAdapters
from penstock_worker.forward.cpu.backend import shapes_of
from penstock_worker.forward.cpu.dtypes import dtype_of, in_two_parts, kind_of, numerics_of
from penstock_worker.forward.cpu.reading import CPUWeights
from penstock_worker.forward.cpu.split import WHOLE
from penstock_worker.forward.interface import Unable
from penstock_worker.metrics.phases import Phases
from penstock_worker.models.decoder import headless
from penstock_worker.parallel.ranks import ALONE, Ranks
from penstock_worker.pooling.adaptable import adapted_encoder
from penstock_worker.pooling.adapters import PoolAdapters
from penstock_worker.pooling.bodies import Encoder
from penstock_worker.pooling.decoders import decoder_recipe, require_attention
from penstock_worker.pooling.encoder.cpu import BLOCK, CPUEncoder, encoder_program
from penstock_worker.pooling.encoders import load_encoder, open_encoder
from penstock_worker.pooling.heads import Head
from penstock_worker.pooling.pool import pooled_by
from penstock_worker.pooling.recipe import PoolingParts, PoolingRecipe, pooling_fingerprint
from penstock_worker.pooling.space import Pictures


def require_encoder(config: EncoderConfig, setup: Setup) -> None:
    """Raises Unable for an encoder that the kernels can't run."""
    shapes_of(config.layers, msgspec.structs.replace(setup, block_size=BLOCK))


def recipe(
    prepared: PreparedModel, setup: Setup, threads: int, ranks: Ranks = ALONE
) -> PoolingRecipe:
    """Raises ImportError without the library, Unable for a model that it can't run, and
    StartupError for settings that no backend can follow."""
    config = prepared.config
    if not isinstance(config, EncoderConfig):
        require_attention(config)
        if ONE_HALF in mechanisms(config):
            raise Unable(f"the model has {ONE_HALF}: no vectors are made of those here")
        return decoder_recipe(generating.recipe, prepared, config, setup, threads, ranks)
    if setup.pooling is None:
        raise ValueError("the setup is of a model that generates")
    mode, late = setup.pooling.mode, setup.pooling.late
    dtype = dtype_of(setup, prepared.weights.dtype)
    require_encoder(config, setup)
    adapted = adapted_encoder(prepared, config, setup)

    def load(phases: Phases) -> PoolingParts:
        packed, adapters = None, PoolAdapters()
        if adapted is not None:
            packed = PackedAdapters(adapted.model, setup, dtype)
            adapters = adapted.steps(packed, setup)

        def build() -> tuple[Encoder, Head | None]:
            weights, head = open_encoder(prepared, config, setup, torch.float32)
            own = None if packed is None else packed.phases(WHOLE, range(config.num_layers))
            loader = CPUWeights(headless(config.layers), weights, kind_of(dtype), threads)
            program = encoder_program(config, loader, setup.max_model_len, own)
            if packed is not None:
                packed.targets = program.low_rank
            encoder = CPUEncoder(
                config,
                program,
                longest=setup.max_model_len,
                threads=threads,
                two_parts=in_two_parts(setup, dtype),
                hides=late is not None and late.hides,
            )
            return encoder, head

        return load_encoder(
            prepared,
            setup,
            phases,
            build,
            pool=pooled_by(mode),
            pictures=Pictures(prepared, setup, torch.float32, threads),
            adapters=adapters,
            shares=1,
        )

    isa, numerics = instruction_set(), numerics_of(setup, dtype)
    said = f"{numerics} torch {torch.__version__} {pooling_fingerprint(setup)}"
    return PoolingRecipe(f"cpu {isa}", dtype, "cpu", f"pooling cpu {bits()} {said}", load)
