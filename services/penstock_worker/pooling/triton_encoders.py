"""Encoders on CUDA, also of texts beside pictures."""

from __future__ import annotations

import numpy as np
import torch
import triton

from penstock.errors import StartupError
from penstock.model.config import EncoderConfig, PreparedModel
from penstock.model.pooling_config import PoolingConfig
from penstock.protocol.to_worker import Setup
from penstock_worker.adapters.device_adapters import DeviceAdapters
from penstock_worker.adapters.interface import BatchAdapters
from penstock_worker.device.memory import memory_of
from penstock_worker.device.queue import queue_of
from penstock_worker.dtype import CUDA, compute_dtype
from penstock_worker.forward.device import capability, device_name
from penstock_worker.forward.interface import Unable, require
from penstock_worker.forward.rehearsal import step_of
from penstock_worker.loading.device import use_device
from penstock_worker.media.interface import NO_MEDIA
from penstock_worker.metrics.phases import Phases
from penstock_worker.pooling.adaptable import adapted_encoder
from penstock_worker.pooling.adapters import PoolAdapters
from penstock_worker.pooling.device_body import DeviceBody, DeviceEncoderBody
from penstock_worker.pooling.device_pooler import DevicePooler
from penstock_worker.pooling.device_space import DeviceSpaceBody
from penstock_worker.pooling.encoder.triton_layered import ENCODER_MECHANISMS, TritonLayered
from penstock_worker.pooling.encoder.triton_ops import TritonEncoderOps
from penstock_worker.pooling.encoders import Inputs, build_encoder
from penstock_worker.pooling.heads import Head
from penstock_worker.pooling.kind import Pool
from penstock_worker.pooling.recipe import (
    BLOCKS_EACH,
    PoolingParts,
    PoolingRecipe,
    pooling_fingerprint,
    pooling_slots,
)
from penstock_worker.pooling.space import Pictures
from penstock_worker.pooling.triton_head_ops import TritonHeadOps
from penstock_worker.steps.runner import StepRunner

LARGEST_ENCODER_HEAD = 256
"""Largest head dimension of the encoders' attention kernel."""


def encoder_recipe(
    prepared: PreparedModel,
    config: EncoderConfig,
    setup: Setup,
    pooling: PoolingConfig,
    device: torch.device,
) -> PoolingRecipe:
    """Raises Unable for an encoder that the kernels can't run."""
    dtype = compute_dtype(setup.dtype, prepared.weights, CUDA)
    if config.layers is not None:
        require(ENCODER_MECHANISMS, config.layers)
    if config.head_dim > LARGEST_ENCODER_HEAD:
        raise Unable(f"a head's size is {config.head_dim}, over {LARGEST_ENCODER_HEAD}")

    head_ops = TritonHeadOps(device, batch_invariant=setup.batch_invariant)
    adapted = adapted_encoder(prepared, config, setup, head_ops)
    pictures = Pictures(prepared, setup, dtype, 1, device)

    def load(phases: Phases) -> PoolingParts:
        layers, adapters = None, PoolAdapters()
        if adapted is not None:
            layers = DeviceAdapters(adapted.model, setup, dtype)
            adapters = adapted.steps(layers, setup)
        memory, blocks = memory_of(device), BLOCKS_EACH * setup.max_num_seqs
        invariant = setup.batch_invariant
        use_device(device)
        try:
            model, head = build_encoder(
                prepared,
                setup,
                dtype,
                ops=TritonEncoderOps(device, dtype, config.head_dim, batch_invariant=invariant),
                layered=TritonLayered(device, dtype, config.head_dim, batch_invariant=invariant),
                head_ops=head_ops,
                device=device,
                adapters=layers,
            )
            if layers is not None:
                layers.allocate(device)
            body = DeviceEncoderBody(model, pooling.mode, device, memory, adapters, layers)
            space = pictures.load(head, body.count_layer)
        except torch.OutOfMemoryError as error:
            raise StartupError(
                f"not enough memory on the device for the weights: {error}"
            ) from error
        memory.release()  # Temporary memory of loading.
        _profile(body, head, setup, layers)
        memory.wait()
        memory.release()
        slots = pooling_slots(prepared, setup, blocks)
        whole: DeviceBody = body
        media = pictures.held
        if space is not None:
            whole, head = DeviceSpaceBody(body, space), None
        seen = NO_MEDIA if media is None else phases.watch(media, "encode", "encode")
        pooler = DevicePooler(whole, head, pooling, adapters=adapters)
        kind = Pool(pooler, slots, media=seen, adapters=adapters.steps)
        runner = StepRunner(queue_of(device), kind, phases=phases)
        return PoolingParts(runner, blocks, media=media)

    name = str(dtype).removeprefix("torch.")
    order = "batch invariant" if setup.batch_invariant else "any order"
    return PoolingRecipe(
        backend="triton",
        dtype=name,
        device_name=device_name(device),
        fingerprint=(
            f"pooling triton {triton.__version__} torch {torch.__version__} {capability(device)} "
            f"{name} {order} {pooling_fingerprint(setup)}"
        ),
        load=load,
    )


def _profile(
    body: DeviceEncoderBody, head: Head | None, setup: Setup, layers: DeviceAdapters | None
) -> None:
    """Runs the largest step, with adapters if there may be any, so that it is known to fit, and on
    a GPU smaller ones, so that all kernels are compiled: which variants are launched depends on the
    number of rows."""
    most = max(setup.max_num_batched_tokens, setup.max_model_len)
    sizes = [most]
    if body.device.type == "cuda":
        sizes = [1 << power for power in range(most.bit_length())] + sizes
    try:
        for tokens in sizes:
            lengths = step_of(setup, tokens).tolist()
            _compute(body, head, lengths)
            if layers is not None:
                _compute(body, head, lengths, layers.on_all(len(lengths)))
    except torch.OutOfMemoryError as error:
        raise StartupError(
            f"not enough memory on the device for one step of the largest size: {error}; "
            "max_num_batched_tokens or max_num_seqs must be less"
        ) from error


def _compute(
    body: DeviceEncoderBody,
    head: Head | None,
    lengths: list[int],
    adapters: BatchAdapters | None = None,
) -> None:
    """Computes inputs of such lengths, of no interest."""
    tokens = np.zeros(sum(lengths), dtype=np.int64)
    hidden = body.compute(Inputs(tokens, tokens, lengths), adapters)
    if head is not None:
        head(hidden.vectors)
