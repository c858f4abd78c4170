"""Pooling models on the CPU kernels: encoders and decoders as programs of the C++ library.

Dtypes are those of `forward.cpu`. Keys and values of an encoder are float32 whatever its weights
are, as nothing is kept of them.
"""

from __future__ import annotations

import msgspec
import numpy as np
import torch
from torch import Tensor

from penstock.model.config import EncoderConfig, ModelConfig, PreparedModel
from penstock.model.kv_layout import layers_that_read, one_group
from penstock.model.mechanisms import ONE_HALF, mechanisms
from penstock.protocol.to_worker import Setup, SlotWork
from penstock_kernels.cpu.decoder import Decoder, DecoderShape, halves_of
from penstock_kernels.cpu.library import bits, instruction_set
from penstock_kernels.cpu.program import ACTIVATIONS, Program
from penstock_worker.batch.block_copies import BlockCopies
from penstock_worker.batch.slots import Slots
from penstock_worker.forward.cpu.adapters import AdaptedPhases, PackedAdapters
from penstock_worker.forward.cpu.backend import dummy_obstacle, shapes_of
from penstock_worker.forward.cpu.dtypes import cache_of, dtype_of, kind_of
from penstock_worker.forward.cpu.forward import CPUForward
from penstock_worker.forward.cpu.media import TOWER_DTYPE
from penstock_worker.forward.cpu.packing import CPUPacking
from penstock_worker.forward.cpu.program import compile_rows
from penstock_worker.forward.cpu.reading import CPUWeights
from penstock_worker.forward.cpu.split import WHOLE
from penstock_worker.forward.interface import Unable
from penstock_worker.machine.memory import pool_blocks
from penstock_worker.metrics.phases import Phases
from penstock_worker.models.decoder import headless
from penstock_worker.parallel.ranks import ALONE, Ranks
from penstock_worker.pooling.adaptable import adapted_decoder, adapted_encoder
from penstock_worker.pooling.adapters import AdaptedPooling, PoolAdapters
from penstock_worker.pooling.decoders import DecoderBody, head_of, require_attention
from penstock_worker.pooling.encoder.cpu_model import BLOCK, CPUEncoder
from penstock_worker.pooling.encoder.cpu_program import EncoderCompiler
from penstock_worker.pooling.encoders import inputs_of, open_encoder
from penstock_worker.pooling.heads import Head
from penstock_worker.pooling.recipe import (
    BLOCKS_EACH,
    PoolingParts,
    PoolingRecipe,
    pooling_fingerprint,
)
from penstock_worker.pooling.reference import pooling_runner
from penstock_worker.pooling.space import Pictures
from penstock_worker.weights.opening import open_weights
from penstock_worker.weights.weights import Weights


class CPUEncoderBody:
    """An encoder's layers."""

    def __init__(self, model: CPUEncoder, adapters: PoolAdapters) -> None:
        self._model = model
        self._adapters = adapters

    @property
    def layers_done(self) -> int:
        return self._model.layers_done

    def rows(self, works: list[SlotWork], slots: Slots) -> list[Tensor]:
        inputs = inputs_of(works, slots, self._model.config)
        adapters = self._adapters.of_batch(works)
        hidden = self._model.hidden(inputs.tokens, inputs.types, inputs.lengths, adapters)
        return list(hidden.split(inputs.lengths))

    def kv_blocks(self) -> list[np.ndarray]:
        return []

    def cancel(self) -> None:
        self._model.cancel()


def recipe(
    prepared: PreparedModel, setup: Setup, threads: int, ranks: Ranks = ALONE
) -> PoolingRecipe:
    """Raises ImportError without the library, Unable for a model that it can't run, and
    StartupError for settings that no backend can follow."""
    isa, dtype = instruction_set(), dtype_of(setup, prepared.weights.dtype)
    fingerprint = (
        f"pooling cpu {bits()} {dtype} torch {torch.__version__} {pooling_fingerprint(setup)}"
    )
    config = prepared.config
    if isinstance(config, EncoderConfig):
        _require_encoder(config, setup)
        adapted = adapted_encoder(prepared, config, setup)
        return PoolingRecipe(
            f"cpu {isa}",
            dtype,
            "cpu",
            fingerprint,
            lambda phases: _load_encoder(prepared, config, setup, threads, dtype, phases, adapted),
        )
    require_attention(config)
    if ONE_HALF in mechanisms(config):
        raise Unable(f"the model has {ONE_HALF}: no vectors are made of those here")
    own = adapted_decoder(prepared, config, setup)
    shapes, cache = shapes_of(config, setup), cache_of(setup.kv_cache_dtype, dtype)
    return PoolingRecipe(
        f"cpu {isa}",
        dtype,
        "cpu",
        f"{fingerprint} KV {cache}",
        lambda phases: _load_decoder(prepared, config, setup, threads, dtype, shapes, phases, own),
    )


def _require_encoder(config: EncoderConfig, setup: Setup) -> None:
    """Raises Unable."""
    obstacle = dummy_obstacle(setup)
    if config.relative_buckets:
        obstacle = "the model has a relative attention bias"
    if config.layers is not None:
        shapes_of(config.layers, msgspec.structs.replace(setup, block_size=BLOCK))
    else:
        heads = config.num_heads
        obstacle = obstacle or DecoderShape(heads, heads, config.head_dim, BLOCK).obstacle()
        if config.activation not in ACTIVATIONS:
            obstacle = (
                f"the activation is {config.activation}; {', '.join(ACTIVATIONS)} are possible"
            )
    if obstacle is not None:
        raise Unable(obstacle)


def _load_encoder(
    prepared: PreparedModel,
    config: EncoderConfig,
    setup: Setup,
    threads: int,
    dtype: str,
    phases: Phases,
    adapted: AdaptedPooling | None,
) -> PoolingParts:
    weights, head = open_encoder(prepared, config, setup, torch.float32)
    packed, adapters, own = None, PoolAdapters(), None
    if adapted is not None:
        packed = PackedAdapters(adapted.model, setup, dtype)
        adapters = adapted.steps(packed, setup)
        own = packed.phases(WHOLE, range(config.num_layers))
    program = _program(config, weights, setup, threads, dtype, own)
    if packed is not None:
        packed.targets = program.low_rank
    model = CPUEncoder(config, program, longest=setup.max_model_len, threads=threads)
    pictures = Pictures(prepared, setup, TOWER_DTYPE, threads)
    texts = CPUEncoderBody(model, adapters)
    body, head = pictures.beside(texts, head, model.count_layer)
    blocks, media = BLOCKS_EACH * setup.max_num_seqs, pictures.held
    runner = pooling_runner(
        prepared, setup, 1, phases, body, head, blocks, media=media, adapters=adapters
    )
    return PoolingParts(runner, blocks, media=media)


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
    return compile_rows(own, read, whole=True, both_ways=both_ways, adapted=adapted)


def _load_decoder(
    prepared: PreparedModel,
    config: ModelConfig,
    setup: Setup,
    threads: int,
    dtype: str,
    shapes: list[DecoderShape],
    phases: Phases,
    adapted: AdaptedPooling | None,
) -> PoolingParts:
    own, cache = headless(config), cache_of(setup.kv_cache_dtype, dtype)
    weights = open_weights(prepared.weights, own, torch.float32)
    head: Head | None = head_of(weights, config, setup.pooling)
    read = CPUWeights(own, weights, kind_of(dtype), threads).read(setup.max_model_len)
    packed, adapters, changed, taken = None, PoolAdapters(), None, 0
    if adapted is not None:
        packed = PackedAdapters(adapted.model, setup, dtype)
        adapters, taken = adapted.steps(packed, setup), packed.nbytes
        changed = packed.phases(WHOLE, range(config.num_layers))
    program = compile_rows(own, read, adapted=changed)
    if packed is not None:
        packed.targets = program.low_rank
    layers = one_group(config.num_layers, layers_that_read(config))
    size = sum(halves_of(shapes, cache)) * layers.page_layers(range(config.num_layers))
    blocks = pool_blocks(setup, size, adapters=taken)
    decoder = Decoder(program, setup.block_size, blocks, cache=cache, threads=threads)
    body = DecoderBody(CPUForward(decoder), adapters)
    copies = BlockCopies(body.kv_blocks(), setup.host_kv_bytes // size)
    timed = phases.watch(copies, "make", "copies")
    runner = pooling_runner(
        prepared, setup, 1, phases, body, head, blocks, timed, adapters=adapters
    )
    return PoolingParts(runner, blocks, copies.host_blocks, copies.device_bytes, copies.seconds())
