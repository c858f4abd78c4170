"""Pooling models on CUDA: Triton kernels and queued steps.

With TRITON_INTERPRET=1 all of it runs on the CPU in Triton's interpreter: slow, for tests.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
import triton
from torch import Tensor

from penstock.errors import StartupError
from penstock.model.config import EncoderConfig
from penstock.model.pooling_config import PoolingMode
from penstock.model.prepared_model import PreparedModel
from penstock.protocol.to_worker import Setup
from penstock_kernels.triton.matmul_tiles import INVARIANT_ORDER
from penstock_kernels.triton.rowwise.activation import activate
from penstock_kernels.triton.rowwise.pool_rows import max_rows, mean_rows
from penstock_worker.adapters.device_adapters import DeviceAdapters
from penstock_worker.adapters.interface import BatchAdapters
from penstock_worker.device.memory import memory_of
from penstock_worker.dtype import CUDA, compute_dtype
from penstock_worker.forward import triton as generating
from penstock_worker.forward.device import capability, device_name
from penstock_worker.forward.interface import Unable, require
from penstock_worker.forward.rehearsal import step_of
from penstock_worker.forward.uploads import Uploads
from penstock_worker.layers.triton_ops import TritonOps
from penstock_worker.loading.device import use_device
from penstock_worker.metrics.phases import Phases
from penstock_worker.parallel.ranks import ALONE, Ranks
from penstock_worker.pooling.adaptable import adapted_encoder
from penstock_worker.pooling.adapters import PoolAdapters
from penstock_worker.pooling.bodies import Encoder, EncoderBody, Inputs, PoolInputs
from penstock_worker.pooling.decoders import decoder_recipe
from penstock_worker.pooling.encoder.triton import ENCODER_MECHANISMS, TritonEncoderKernels
from penstock_worker.pooling.encoders import TorchEncoder, build_encoder, load_encoder
from penstock_worker.pooling.heads import Head
from penstock_worker.pooling.recipe import PoolingParts, PoolingRecipe, pooling_fingerprint
from penstock_worker.pooling.space import Pictures
from penstock_worker.quantisation.interface import Product

LARGEST_ENCODER_HEAD = 256
"""Largest head dimension of the encoders' attention kernel."""


def require_encoder(config: EncoderConfig, setup: Setup) -> None:
    """Raises Unable for an encoder that the kernels can't run."""
    require(ENCODER_MECHANISMS, config.layers)
    if config.layers.head_dim > LARGEST_ENCODER_HEAD:
        raise Unable(f"a head's size is {config.layers.head_dim}, over {LARGEST_ENCODER_HEAD}")
    pooling = setup.pooling
    if pooling is not None and pooling.late is not None and pooling.late.hides:
        raise Unable("a query is filled up with tokens that others don't see")


def recipe(
    prepared: PreparedModel, setup: Setup, threads: int, ranks: Ranks = ALONE
) -> PoolingRecipe:
    """Makes the recipe of any pooling model. Raises ImportError without Triton, Unable for a model
    that its kernels can't run, and StartupError for settings that no backend can follow."""
    device = generating.kernel_device(setup)
    ops = TritonHeadOps(device, batch_invariant=setup.batch_invariant)
    config = prepared.config
    if not isinstance(config, EncoderConfig):
        return decoder_recipe(generating.recipe, prepared, config, setup, threads, ranks, ops)
    return encoder_recipe(prepared, config, setup, device, ops)


def encoder_recipe(
    prepared: PreparedModel,
    config: EncoderConfig,
    setup: Setup,
    device: torch.device,
    head_ops: TritonHeadOps,
) -> PoolingRecipe:
    """Raises Unable for an encoder that the kernels can't run."""
    if setup.pooling is None:
        raise ValueError("the setup is of a model that generates")
    mode = setup.pooling.mode
    dtype, invariant = compute_dtype(setup.dtype, prepared.weights, CUDA), setup.batch_invariant
    require_encoder(config, setup)
    adapted = adapted_encoder(prepared, config, setup, head_ops)
    pictures = Pictures(prepared, setup, dtype, 1, device)

    def load(phases: Phases) -> PoolingParts:
        layers, adapters = None, PoolAdapters()
        if adapted is not None:
            layers = DeviceAdapters(adapted.model, setup, dtype)
            adapters = adapted.steps(layers, setup)
        use_device(device)

        def build() -> tuple[Encoder, Head | None]:
            kernels = TritonEncoderKernels(
                device, dtype, config.layers.head_dim, batch_invariant=invariant
            )
            model, head = build_encoder(
                prepared,
                setup,
                dtype,
                kernels=kernels,
                head_ops=head_ops,
                device=device,
                adapters=layers,
            )
            if layers is not None:
                layers.allocate(device)
            return TorchEncoder(model, AddedOnDevice(layers, device)), head

        try:
            return load_encoder(
                prepared,
                setup,
                phases,
                build,
                pool=_pooled_by(mode, device),
                pictures=pictures,
                adapters=adapters,
                device=device,
                shares=None,
                profile=lambda body, head: _profile(body, head, setup, layers),
            )
        except torch.OutOfMemoryError as error:
            raise StartupError(
                f"not enough memory on the device for the weights: {error}"
            ) from error

    name = str(dtype).removeprefix("torch.")
    order = f"batch invariant {INVARIANT_ORDER}" if invariant else "any order"
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


class AddedOnDevice:
    """Returns a context in which products add the adapters of inputs of these lengths."""

    def __init__(self, layers: DeviceAdapters | None, device: torch.device) -> None:
        """`layers`: None if there never are any."""
        self._layers = layers
        self._uploads = Uploads(device)

    def __call__(
        self, adapters: BatchAdapters | None, lengths: np.ndarray
    ) -> AbstractContextManager[None]:
        layers = self._layers
        places = None if layers is None else layers.placed(adapters)
        if layers is None or places is None:
            return nullcontext()
        tiles = layers.tiles_of(places, lengths)
        return layers.of(tiles.on_device(self._uploads.send(tiles.arrays)))


def _pooled_by(mode: PoolingMode, device: torch.device) -> PoolInputs:
    uploads = Uploads(device)

    def pooled(rows: Tensor, lengths: list[int]) -> Tensor:
        counts = np.array(lengths, dtype=np.int32)
        starts, sent = uploads.send([np.cumsum(counts) - counts, counts])
        match mode:
            case "mean":
                return mean_rows(rows, starts, sent)
            case "max":
                return max_rows(rows, starts, sent)
            case "cls":
                return rows.index_select(0, starts).float()
            case "last":
                return rows.index_select(0, starts + sent - 1).float()

    return pooled


def _profile(
    body: EncoderBody, head: Head | None, setup: Setup, layers: DeviceAdapters | None
) -> None:
    """Runs the largest step, with adapters if there may be any, so that it is known to fit, and on
    a GPU smaller ones, so that all kernels are compiled: which variants are launched depends on the
    number of rows."""
    most = max(setup.max_num_batched_tokens, setup.max_model_len)
    sizes = [most]
    if body.device.type == "cuda":
        sizes = [1 << power for power in range(most.bit_length())] + sizes
    memory = memory_of(body.device)
    memory.release()  # Temporary memory of loading.
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
    memory.wait()
    memory.release()


def _compute(
    body: EncoderBody,
    head: Head | None,
    lengths: list[int],
    adapters: BatchAdapters | None = None,
) -> None:
    """Computes dummy inputs of such lengths."""
    tokens = np.zeros(sum(lengths), dtype=np.int64)
    hidden = body.compute(Inputs(tokens, tokens, lengths), adapters)
    if head is not None:
        head(hidden.vectors)


class TritonHeadOps:
    """Float32 products of a head, for all inputs of a step at once."""

    def __init__(self, device: torch.device, *, batch_invariant: bool) -> None:
        self._products = TritonOps(device, torch.float32, batch_invariant=batch_invariant)

    def product(self, weight: Tensor, bias: Tensor | None = None) -> Product:
        return self._products.product(weight, bias)

    def activate(self, x: Tensor, kind: str) -> Tensor:
        return activate(x, kind)

    def of_inputs(self, head: Head) -> Head:
        return head
