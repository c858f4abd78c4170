"""The CUDA backend: the model families on Triton kernels, with queued steps and CUDA graphs for
decode.

With TRITON_INTERPRET=1 all of it runs on the CPU in Triton's interpreter: slow, for tests.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import msgspec
import numpy as np
import torch
import triton
from torch import Tensor

from penstock.errors import StartupError
from penstock.model.kv_layout import kv_layout
from penstock.model.prepared_model import PreparedModel
from penstock.process import logs
from penstock.protocol.to_worker import Setup
from penstock_kernels.triton.attention.kv_scales import KVScales
from penstock_kernels.triton.matmul_tiles import INVARIANT_ORDER
from penstock_kernels.triton.rounding import INTERPRETED
from penstock_kernels.triton.shared_memory import shared_memory
from penstock_worker.adapters.device_adapters import DeviceAdapters
from penstock_worker.attention.flash_choice import choose_flash
from penstock_worker.attention.interface import CacheShape
from penstock_worker.attention.triton import TritonAttention
from penstock_worker.device.memory import memory_of
from penstock_worker.dtype import (
    BESIDE_QUANTISED,
    CUDA,
    cache_dtype,
    compute_dtype,
    may_keep,
    stays_quantised,
)
from penstock_worker.forward.aux_hidden import aux_hidden_for
from penstock_worker.forward.buckets import buckets_of
from penstock_worker.forward.common_mechanisms import COMMON
from penstock_worker.forward.cpu_experts import HandOver, expert_host
from penstock_worker.forward.decoded_part import encoder_obstacle
from penstock_worker.forward.device import capability, compute_device, device_name
from penstock_worker.forward.expert_room import Cache, beside_bytes
from penstock_worker.forward.interface import Batch, DeviceBuild, DeviceRecipe, Unable, require
from penstock_worker.forward.purpose import LOGITS, Purpose
from penstock_worker.forward.rehearsal import MediaSteps
from penstock_worker.forward.triton_build import TritonBuild
from penstock_worker.forward.triton_limits import (
    attention_of,
    crooked_checkpoints,
    crowded_router,
    obstacle_of,
    quantised_experts,
    ranks_with_towers,
)
from penstock_worker.layers.level_experts import ExpertHost
from penstock_worker.layers.parts import DecoderOps
from penstock_worker.machine.environment_checks import NO_C_COMPILER, c_compiler
from penstock_worker.machine.torch_import import complete_torch
from penstock_worker.media.loading import ModelMedia
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.parallel.ranks import ALONE, Ranks
from penstock_worker.parallel.shard import shard_of
from penstock_worker.states.on_device import device_states
from penstock_worker.states.planning import groups_over_ranks
from penstock_worker.weights.cache_scales import stored_scales
from penstock_worker.weights.cut import Cut
from penstock_worker.weights.opening import open_weights
from penstock_worker.weights.weights import Weights

MECHANISMS = COMMON
"""What this backend has beyond Llama's layers."""
FP8_CAPABILITY = (8, 9)
"""Lowest compute capability that has fp8 conversions."""


def recipe(
    prepared: PreparedModel,
    setup: Setup,
    threads: int,
    ranks: Ranks = ALONE,
    purpose: Purpose = LOGITS,
) -> DeviceRecipe:
    """The recipe for any model that a family exists for. Raises ImportError without Triton, Unable
    for a model that its kernels can't run, and StartupError for settings that no backend can
    follow."""
    device = kernel_device(setup)
    config = prepared.decoder
    as_filed = setup.quantization == "none" and setup.load_format == "auto"
    kept = as_filed and stays_quantised(setup.dtype, prepared.weights)
    dtype = BESIDE_QUANTISED if kept else compute_dtype(setup.dtype, prepared.weights, CUDA)
    shard, layout = shard_of(config, ranks.place), kv_layout(config, setup.max_model_len)
    cache = cache_dtype(setup.kv_cache_dtype, dtype, CUDA)
    shape = CacheShape.of(shard.own, setup.block_size, cache, layout, shard.layers)
    _check_cache(shape.dtype, device)
    choices = attention_of(
        config,
        (dtype, shape.dtype),
        batch_invariant=setup.batch_invariant,
        shared=shared_memory(device),
    )
    require(MECHANISMS, config)
    block_bytes = TritonAttention.block_bytes(shape)
    groups = groups_over_ranks(
        config,
        shape.groups,
        lambda shard: TritonAttention.block_bytes(
            CacheShape.of(shard.own, setup.block_size, cache, layout, shard.layers)
        ),
        setup,
        ranks.place,
    )
    states = device_states(shard, groups, setup)
    obstacle = (
        obstacle_of(shape, choices)
        or crowded_router(config)
        or quantised_experts(setup, config)
        or crooked_checkpoints(shape, groups)
        or ranks_with_towers(config, ranks.place)
        or encoder_obstacle(config)
    )
    if obstacle is not None:
        raise Unable(obstacle)
    flash = choose_flash(setup, shard.own, shape, dtype, device)
    adaptable = purpose.adaptable(config, setup)
    media = ModelMedia(prepared, setup, ranks, dtype, device, joins_spans=False)
    kv = Cache(block_bytes, groups)
    beside = partial(beside_bytes, setup, prepared, kv, adaptable, media.encodings)
    host = expert_host(setup, config, prepared, threads, device, ranks, kv, beside)
    if host is not None and host.on_host:
        setup = msgspec.structs.replace(setup, enforce_eager=True)
    adapters = None if adaptable is None else DeviceAdapters(adaptable, setup, dtype, Cut(shard))
    aux_hidden = aux_hidden_for(config, setup)

    def build() -> DeviceBuild:
        flash.tell(shard.own.num_layers)
        see, held = media.load(), media.encodings
        weights = open_weights(
            prepared.weights,
            config,
            dtype,
            device=device,
            load_format=setup.load_format,
            keep_quantised=as_filed and may_keep(setup.dtype, prepared.weights, dtype),
        )
        ops = _ops(setup, device, dtype, host)
        purpose.take(weights)
        model = DecoderModel(config, weights, setup.max_model_len, ops, ranks, adapters, aux_hidden)
        if host is not None:
            host.finish()
        memory, head = memory_of(device), model.norm if purpose.headless else model.logits
        if states is not None:
            states.allocate(device)
        if adapters is not None:
            adapters.allocate(device)
        built = TritonBuild(
            model,
            setup,
            dtype,
            shape,
            choices,
            device,
            memory,
            ranks,
            head,
            states,
            see,
            adapters,
            aux_hidden,
            None if held is None else MediaSteps(held.sections, held.whole_spans),
            flash=flash.library,
            on_trial=nullcontext if host is None else host.trial.on,
        )
        return with_scales(built, weights)

    name, stored = (str(each).removeprefix("torch.") for each in (dtype, shape.dtype))
    if kept:
        name = f"{prepared.weights.dtype} x {name}"
    if shape.dtype == torch.float8_e4m3fn:
        stored += " calculated scales" if setup.calculate_kv_scales else " scaled"
    order = f"batch invariant {INVARIANT_ORDER}" if setup.batch_invariant else "any order"
    if host is not None:
        order += ", experts in whole numbers"
    return DeviceRecipe(
        backend="triton",
        dtype=name,
        fingerprint=(
            f"triton {triton.__version__} torch {torch.__version__} {capability(device)} {name} "
            f"KV {stored} {order} quantization {setup.quantization}{flash.numerics}"
        ),
        block_bytes=block_bytes,
        kv_groups=groups,
        threads_by_share=False,
        build=build,
        device=device,
        device_name=device_name(device),
        graphs=0 if setup.enforce_eager else len(buckets_of(setup, config).all),
        states=states,
        media=media.encodings,
        adapters=adapters,
        hand_over=None if host is None else HandOver(host.counts),
        aux_hidden=aux_hidden,
    )


def kernel_device(setup: Setup) -> torch.device:
    """Returns the device that Triton's kernels run on. Raises Unable if they can't run, and what
    compute_device raises."""
    device = compute_device(setup)
    if device.type == "cpu" and not INTERPRETED.value:
        raise Unable("it needs a GPU (or TRITON_INTERPRET=1, for tests)")
    if device.type == "cuda" and c_compiler() is None:
        raise Unable(f"there is {NO_C_COMPILER}")
    complete_torch()  # It takes little time compared with a GPU's own start.
    return device


def _check_cache(dtype: torch.dtype, device: torch.device) -> None:
    """Raises StartupError for a KV cache dtype that kernels can't be compiled for on this
    device."""
    if device.type != "cuda" or dtype != torch.float8_e4m3fn:
        return
    has = torch.cuda.get_device_capability(device)
    if has < FP8_CAPABILITY:
        raise StartupError(
            "kv_cache_dtype is fp8, which needs a GPU of compute capability 8.9 or higher; "
            f"{device_name(device)} has {'.'.join(map(str, has))}, and can do auto, float32, "
            "bfloat16, float16"
        )


def _ops(
    setup: Setup, device: torch.device, dtype: torch.dtype, host: ExpertHost | None
) -> DecoderOps:
    from penstock_worker.layers.triton_ops import TritonOps

    return TritonOps(
        device,
        dtype,
        batch_invariant=setup.batch_invariant,
        quantization=setup.quantization,
        expert_host=host,
    )


# Scales of an FP8 cache: those of the checkpoint, or of what a trial step stores.
#
# FP8 e4m3 holds numbers from 2^-9 to 448. Keys and values of a head that are mostly far smaller, or
# larger, would lose their last bits or all of them.

log = logs.get(__name__)

TRIAL_TOKENS = 512
LARGEST = 448.0
"""Largest number of FP8 e4m3."""
MARGIN = 2.0
"""Factor by which keys and values may be larger than in the trial step. It costs little: steps
between neighbouring numbers are as fine relative to them, whatever their size."""


def with_scales(build: TritonBuild, weights: Weights) -> TritonBuild:
    """Returns the same build with the scales that its cache is to have. `weights`: not cut to the
    rank. Raises StartupError, and what `stored_scales` raises."""
    if build.shape.dtype != torch.float8_e4m3fn:
        return build
    origin, found = "the checkpoint", stored_scales(weights, build.model.shard)
    if found is None and build.setup.calculate_kv_scales:
        origin, found = "a trial step", calculated_scales(build)
    if found is None:
        log.info("keys and values in FP8 are not scaled: the checkpoint has no scales")
        return build
    log.info("keys and values in FP8 are scaled for each layer and head", scales_of=origin)
    return replace(build, scales=tuple(KVScales.of(*each) for each in found))


def calculated_scales(build: TritonBuild) -> list[tuple[Tensor, Tensor]]:
    """Scales of each layer's keys and values, from what a step of token ids that look random
    stores. Scales are powers of two, so that only FP8 rounds, and sums whose last bits differ give
    the same ones."""
    if build.model.config.encoder_rows:
        raise StartupError("calculate_kv_scales is not served for models with an encoder")
    attention, tokens = _stored_by_a_step(build)
    return [_of_layer(attention, layer, tokens) for layer in range(len(build.model.shard.layers))]


def _stored_by_a_step(build: TritonBuild) -> tuple[TritonAttention, int]:
    """Returns a cache in the type of activations, and how many tokens of each KV group it holds."""
    setup, groups = build.setup, len(build.shape.groups)
    tokens = min(TRIAL_TOKENS, setup.max_model_len, setup.max_num_batched_tokens)
    blocks = -(-tokens // setup.block_size)
    tables = [np.arange(group * blocks, (group + 1) * blocks) for group in range(groups)]
    plain = replace(build, shape=replace(build.shape, dtype=build.dtype))
    attention = plain.run_alone(
        Batch(
            # Knuth's multiplicative hash of their positions (1973).
            tokens=np.arange(tokens) * 2_654_435_761 % build.model.config.vocab_size,
            tables=tables[:1],
            starts=np.zeros(1, np.int64),
            counts=np.full(1, tokens),
            more_tables=tuple([table] for table in tables[1:]),
            slots=range(1),
        ),
        groups * blocks,
    )
    return attention, tokens


def _of_layer(attention: TritonAttention, layer: int, tokens: int) -> tuple[Tensor, Tensor]:
    own, (group, _) = attention.of_layer(layer), attention.shape.place(layer)
    slots = attention.num_blocks // len(attention.shape.groups) * attention.shape.block_size
    if group < 0:  # It has neither keys nor values.
        one = torch.ones(len(own.keys), device=own.keys.device)
        return one, one
    part = slice(group * slots, group * slots + tokens)
    return _scale(own.keys[:, part]), _scale(own.values[:, part])


def _scale(stored: Tensor) -> Tensor:
    """[heads, slots, size] to [heads] float32, powers of two."""
    largest = stored.float().abs().amax((1, 2))
    mantissa, exponent = torch.frexp(largest * (MARGIN / LARGEST))
    power = torch.ldexp(torch.ones_like(largest), exponent - (mantissa == 0.5).int())
    return torch.where((largest > 0) & largest.isfinite(), power, 1.0)
