"""Pooling models on CUDA: Triton kernels and queued steps.

With TRITON_INTERPRET=1 all of it runs on the CPU in Triton's interpreter: slow, for tests.
"""

from __future__ import annotations

import msgspec
import numpy as np
import torch
import triton
from torch import Tensor

from penstock.errors import StartupError
from penstock.model.config import EncoderConfig, ModelConfig, PreparedModel
from penstock.model.pooling_config import PoolingConfig
from penstock.protocol.to_worker import Setup, SlotWork
from penstock_kernels.triton.rowwise.activation import activate
from penstock_worker.adapters.device_adapters import DeviceAdapters
from penstock_worker.adapters.interface import BatchAdapters
from penstock_worker.adapters.models import AdaptableModel
from penstock_worker.batch.slots import Slots
from penstock_worker.device.memory import memory_of
from penstock_worker.device.queue import queue_of
from penstock_worker.dtype import CUDA, compute_dtype
from penstock_worker.forward import triton as generating
from penstock_worker.forward.device import capability, compute_device, device_name
from penstock_worker.forward.interface import Unable, require
from penstock_worker.forward.queued import RowsHead
from penstock_worker.forward.rehearsal import step_of
from penstock_worker.forward.uploads import Uploads
from penstock_worker.layers.triton_ops import TritonOps
from penstock_worker.loading.device import load_forward, use_device
from penstock_worker.media.interface import NO_MEDIA
from penstock_worker.metrics.phases import Phases
from penstock_worker.models.decoder import DecoderModel, headless
from penstock_worker.parallel.ranks import ALONE, Ranks
from penstock_worker.pooling.adaptable import adapted_decoder, adapted_encoder
from penstock_worker.pooling.adapters import AdaptedPooling, PoolAdapters
from penstock_worker.pooling.decoders import head_of, require_attention
from penstock_worker.pooling.device_body import (
    DeviceBody,
    DeviceDecoderBody,
    DeviceEncoderBody,
    Hidden,
)
from penstock_worker.pooling.device_pooler import DevicePooler
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
from penstock_worker.pooling.space import MIXED, Pictures, SpaceParts, chosen_token, is_picture
from penstock_worker.quantisation.interface import Product
from penstock_worker.steps.runner import StepRunner
from penstock_worker.weights.weights import Weights


def recipe(
    prepared: PreparedModel, setup: Setup, threads: int, ranks: Ranks = ALONE
) -> PoolingRecipe:
    """Makes the recipe of any pooling model. Raises ImportError without Triton, Unable for a model
    that its kernels can't run, and StartupError for settings that no backend can follow."""
    if setup.pooling is None:
        raise ValueError("the setup is of a model that generates")
    device = generating.kernel_device(setup)
    if isinstance(prepared.config, EncoderConfig):
        return encoder_recipe(prepared, prepared.config, setup, setup.pooling, device)
    return _decoder(prepared, prepared.config, setup, setup.pooling, threads, ranks)


class PooledVectors:
    """The Purpose of a decoder of which the rows after the last norm are wanted."""

    def __init__(
        self,
        config: ModelConfig,
        pooling: PoolingConfig,
        ops: TritonHeadOps,
        adapted: AdaptedPooling | None,
    ) -> None:
        """`adapted`: None if there are no adapters."""
        self.head: Head | None = None
        self._adapted = adapted
        self._config = config
        self._pooling = pooling
        self._ops = ops

    def take(self, weights: Weights) -> None:
        self.head = head_of(weights, self._config, self._pooling, self._ops)

    def of(self, model: DecoderModel) -> RowsHead:
        return model.norm

    def adaptable(self, config: ModelConfig, setup: Setup) -> AdaptableModel:
        if self._adapted is None:
            raise ValueError("the setup asks for no adapters")
        return self._adapted.model


def _decoder(
    prepared: PreparedModel,
    config: ModelConfig,
    setup: Setup,
    pooling: PoolingConfig,
    threads: int,
    ranks: Ranks,
) -> PoolingRecipe:
    require_attention(config)
    device = compute_device(setup)
    ops = TritonHeadOps(device, batch_invariant=setup.batch_invariant)
    adapted = adapted_decoder(prepared, config, setup, ops)
    vectors = PooledVectors(config, pooling, ops, adapted)
    # Nothing is decoded, so there are no steps to capture.
    inner = generating.recipe(
        msgspec.structs.replace(prepared, config=headless(config)),
        msgspec.structs.replace(setup, enforce_eager=True),
        threads,
        ranks,
        vectors,
    )

    def score(rows: Tensor) -> None:
        if vectors.head is not None:
            vectors.head(rows[: setup.max_num_seqs].float())

    def load(phases: Phases) -> PoolingParts:
        pool = load_forward(inner, setup, score, ranks)
        adapters = PoolAdapters()
        if adapted is not None and inner.adapters is not None:
            adapters = adapted.steps(inner.adapters, setup)
        body = DeviceDecoderBody(pool.forward, adapters)
        kind = Pool(
            DevicePooler(body, vectors.head, pooling, adapters=adapters),
            pooling_slots(prepared, setup, pool.blocks, inner.kv_groups),
            copies=pool.copies,
            adapters=adapters.steps,
        )
        runner = StepRunner(queue_of(pool.forward.device), kind, phases=phases)
        copies = pool.copies
        return PoolingParts(
            runner,
            pool.blocks,
            copies.host_blocks,
            copies.device_bytes,
            copies.seconds(),
            inner.kv_groups,
        )

    return PoolingRecipe(
        inner.backend,
        inner.dtype,
        inner.device_name,
        f"pooling {inner.fingerprint} {pooling_fingerprint(setup)}",
        load,
    )


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


class DeviceSpaceBody:
    """DeviceBody whose vectors are those of texts and of pictures."""

    def __init__(self, texts: DeviceEncoderBody, parts: SpaceParts) -> None:
        """`texts`: their hidden states. `parts`: on the same device; their head makes vectors of
        several texts at once."""
        self.device = texts.device
        self._texts = texts
        self._vector = parts.vector
        self._space = parts.space
        self._media = parts.media
        self._uploads = Uploads(texts.device)

    @property
    def layers_done(self) -> int:
        return self._texts.layers_done

    def hidden(self, works: list[SlotWork], slots: Slots) -> Hidden:
        """The vector of a slot that has failed is zero."""
        texts = [work for work in works if slots[work.slot].media is None]
        pictures = [work for work in works if slots[work.slot].media is not None]
        nothing = torch.zeros(1, self._space.size, device=self.device)
        found = [nothing, *(self._of_picture(work, slots, nothing) for work in pictures)]
        if texts:
            found.append(self._of_texts(texts, slots))
        slot_order = [work.slot for work in (*pictures, *texts)]
        place = {slot: number for number, slot in enumerate(slot_order, 1)}
        (order,) = self._uploads.send([np.array([place[work.slot] for work in works])])
        return Hidden(torch.cat(found).index_select(0, order), None)

    def _of_texts(self, texts: list[SlotWork], slots: Slots) -> Tensor:
        rows = self._texts.rows(texts, slots)
        starts = np.cumsum([0, *(work.count for work in texts)])[:-1]
        own = [chosen_token(self._space, slots[work.slot].token_ids) for work in texts]
        (places,) = self._uploads.send([starts + own])
        return self._vector(rows.index_select(0, places).float())

    def _of_picture(self, work: SlotWork, slots: Slots, nothing: Tensor) -> Tensor:
        slot = slots[work.slot]
        if not is_picture(slot):
            slot.failed = slot.failed or MIXED
            return nothing
        batch = self._media.of_batch([work], slots)
        if batch is None or batch.embeddings is None:
            return nothing
        return batch.embeddings.float()

    def cancel(self) -> None:
        self._texts.cancel()


class TritonHeadOps:
    """Float32 products of a head, for all inputs of a step at once."""

    def __init__(self, device: torch.device, *, batch_invariant: bool) -> None:
        self._products = TritonOps(device, torch.float32, batch_invariant=batch_invariant)

    def product(self, weight: Tensor, bias: Tensor | None = None) -> Product:
        return self._products.product(weight, bias)

    def activate(self, x: Tensor, kind: str) -> Tensor:
        return activate(x, kind)
