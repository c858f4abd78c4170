"""Pooling models on the CPU kernels: encoders and decoders as programs of the C++ library.

Dtypes are those of `forward.cpu`. Keys and values of an encoder are float32 whatever its weights
are, as nothing is kept of them.
"""

from __future__ import annotations

import msgspec
import torch

from penstock.model.config import EncoderConfig, PreparedModel
from penstock.model.mechanisms import ONE_HALF, mechanisms
from penstock.protocol.to_worker import Setup
from penstock_kernels.cpu.decoder import DecoderShape
from penstock_kernels.cpu.library import bits, instruction_set
from penstock_kernels.cpu.program import ACTIVATIONS, Program
from penstock_worker.forward.cpu import backend as generating
from penstock_worker.forward.cpu.adapters import AdaptedPhases, PackedAdapters
from penstock_worker.forward.cpu.backend import dummy_obstacle, shapes_of
from penstock_worker.forward.cpu.dtypes import dtype_of, in_two_parts, kind_of, numerics_of
from penstock_worker.forward.cpu.media import TOWER_DTYPE
from penstock_worker.forward.cpu.packing import CPUPacking
from penstock_worker.forward.cpu.program import compile_encoder
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
from penstock_worker.pooling.encoder.cpu import BLOCK, CPUEncoder, EncoderCompiler
from penstock_worker.pooling.encoders import load_encoder, open_encoder
from penstock_worker.pooling.heads import Head
from penstock_worker.pooling.pool import pooled_by
from penstock_worker.pooling.recipe import PoolingParts, PoolingRecipe, pooling_fingerprint
from penstock_worker.pooling.space import Pictures
from penstock_worker.weights.weights import Weights


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
    _require_encoder(config, setup)
    adapted = adapted_encoder(prepared, config, setup)

    def load(phases: Phases) -> PoolingParts:
        packed, adapters = None, PoolAdapters()
        if adapted is not None:
            packed = PackedAdapters(adapted.model, setup, dtype)
            adapters = adapted.steps(packed, setup)

        def build() -> tuple[Encoder, Head | None]:
            weights, head = open_encoder(prepared, config, setup, torch.float32)
            own = None if packed is None else packed.phases(WHOLE, range(config.num_layers))
            program = _program(config, weights, setup, threads, dtype, own)
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
            pictures=Pictures(prepared, setup, TOWER_DTYPE, threads),
            adapters=adapters,
            shares=1,
        )

    isa, numerics = instruction_set(), numerics_of(setup, dtype)
    said = f"{numerics} torch {torch.__version__} {pooling_fingerprint(setup)}"
    return PoolingRecipe(f"cpu {isa}", dtype, "cpu", f"pooling cpu {bits()} {said}", load)


def _require_encoder(config: EncoderConfig, setup: Setup) -> None:
    """Raises Unable."""
    obstacle = dummy_obstacle(setup)
    if config.layers is not None:
        shapes_of(config.layers, msgspec.structs.replace(setup, block_size=BLOCK))
    else:
        heads = config.num_heads
        obstacle = obstacle or DecoderShape(heads, heads, config.head_dim, BLOCK).obstacle()
        if config.disentangled is not None and config.disentangled.convolution:
            obstacle = "the first layer's output gets a convolution of embeddings"
        if config.activation not in ACTIVATIONS:
            obstacle = (
                f"the activation is {config.activation}; {', '.join(ACTIVATIONS)} are possible"
            )
    if obstacle is not None:
        raise Unable(obstacle)


def _program(
    config: EncoderConfig,
    weights: Weights,
    setup: Setup,
    threads: int,
    dtype: str,
    adapted: AdaptedPhases | None,
) -> Program:
    if config.layers is None:
        packing, kind = CPUPacking(weights, threads), kind_of(dtype)
        program = EncoderCompiler(config, packing, kind, setup.max_model_len, adapted).program()
        weights.finish()
        return program
    own = headless(config.layers)
    read = CPUWeights(own, weights, kind_of(dtype), threads).read(setup.max_model_len)
    both_ways = not config.causal
    return compile_encoder(own, read, both_ways=both_ways, adapted=adapted)
