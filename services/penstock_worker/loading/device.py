"""Loads a model onto a GPU: weights, sampler, and a KV cache in the memory that is left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from penstock.errors import StartupError
from penstock.model.kv_layout import blocks_needed, paged
from penstock.process import logs
from penstock.process.start_phases import START
from penstock.protocol.common import LogitsAdjustments, TokenSampling
from penstock.protocol.to_worker import Setup
from penstock_worker.device.block_copies import DeviceBlockCopies
from penstock_worker.device.memory import DeviceMemory, device_kv_blocks, measure, memory_of
from penstock_worker.device.queue import ReportedWhenQueued, queue_of
from penstock_worker.device.stored_cache import staging_bytes, stored_cache
from penstock_worker.forward.buckets import GRAPH_BYTES
from penstock_worker.forward.interface import DeviceBuild, DeviceForward, DeviceRecipe
from penstock_worker.loading.kernels import triton_kernels
from penstock_worker.loading.parts import StepParts
from penstock_worker.machine.memory import free_memory, longest_blocks
from penstock_worker.metrics.phases import Phases
from penstock_worker.parallel.ranks import ALONE, Ranks
from penstock_worker.sampler.adjustments import adjustments_of
from penstock_worker.sampler.interface import SampleRequest
from penstock_worker.stores.cache import StoredCache
from penstock_worker.stores.opening import wants_store

if TYPE_CHECKING:
    from penstock_worker.sampler.device import DeviceSampler
    from penstock_worker.speculation.loaders import LoadsDrafts

log = logs.get(__name__)


@dataclass(frozen=True)
class DevicePool:
    """A forward pass and its block copies, which share one KV cache."""

    forward: DeviceForward
    copies: DeviceBlockCopies
    blocks: int
    """Number of KV blocks."""
    rehearse: Callable[[], None]
    """The model's LoadedKernels.rehearse."""

    def stored_cache(
        self, setup: Setup, recipe: DeviceRecipe, draft: LoadsDrafts | None
    ) -> StoredCache:
        """Returns the cache as what keeps KV elsewhere needs it: of `forward.blocks` those of the
        served model, as what drafts computes its own again."""
        groups = len(paged(recipe.kv_groups))
        step_blocks = groups * -(-setup.max_num_batched_tokens // setup.block_size)
        blocks = self.forward.blocks()
        kept = blocks if draft is None else blocks[: draft.served_parts]
        return stored_cache(kept, step_blocks)


@dataclass(frozen=True)
class DeviceParts(DevicePool):
    """A DevicePool with a sampler, which has as many slots."""

    sampler: DeviceSampler


def load_on_device(
    recipe: DeviceRecipe, setup: Setup, vocab: int, ranks: Ranks = ALONE
) -> DeviceParts:
    """Loads what load_forward does, and the sampler."""
    from penstock_worker.sampler.device import DeviceSampler

    use_device(recipe.device)
    try:
        sampler = DeviceSampler(
            recipe.device, vocab, setup.max_num_seqs, batch_invariant=setup.batch_invariant
        )
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise StartupError(f"not enough memory on the device for the sampler: {error}") from error
    profile_run = ProfileRun(sampler, setup, vocab, ranks)
    pool = load_forward(recipe, setup, profile_run.sample, ranks)
    if recipe.device.type == "cuda" and ranks.place.last:
        # Otherwise the first request with a rare option would wait for its kernels to compile.
        try:
            sampler.warm_up(torch.zeros(1, vocab, dtype=torch.float32, device=recipe.device))
        except torch.OutOfMemoryError as error:
            raise StartupError(f"not enough memory on the device to sample: {error}") from error
    return DeviceParts(pool.forward, pool.copies, pool.blocks, pool.rehearse, sampler)


def device_parts(
    recipe: DeviceRecipe,
    setup: Setup,
    draft: LoadsDrafts | None,
    vocab: int,
    phases: Phases,
    ranks: Ranks,
) -> StepParts:
    """Loads a model onto a GPU, and with it what drafts, of which `recipe` is then."""
    with torch.inference_mode():
        parts = load_on_device(recipe, setup, vocab, ranks)
        copy_seconds = parts.copies.seconds()
    # The digest of the model covers the scales of its files, but not those that a trial step gave.
    # They are calculated only for one rank, so all ranks still have one fingerprint.
    scales = parts.forward.kv_scales.hex()
    queue = queue_of(recipe.device)
    return StepParts(
        device=recipe.device_name,
        queue=queue,
        stage_queue=ReportedWhenQueued(queue),
        forward=parts.forward,
        timed_forward=parts.forward,
        sampler=parts.sampler,
        timed_sampler=parts.sampler,
        memory=parts.sampler,
        copies=parts.copies,
        timed_copies=parts.copies,
        copy_seconds=copy_seconds,
        blocks=parts.blocks,
        cache=parts.stored_cache(setup, recipe, draft),
        calculated=f" scales {scales}" if setup.calculate_kv_scales else "",
        scales=f" {scales}",
        kernels=triton_kernels(parts.rehearse, parts.forward.capture),
        newest=parts.forward.newest,
        check=ranks.check,
        phases=phases,
        runs_ahead=True,
    )


def use_device(device: torch.device) -> None:
    """Makes this the current device of torch and Triton."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def load_forward(
    recipe: DeviceRecipe, setup: Setup, profile: Callable[[Tensor], None], ranks: Ranks = ALONE
) -> DevicePool:
    """Loads the weights, measures the largest steps, and allocates the KV cache.

    `profile` runs what follows the largest step's logits. KV cache and host tier get the smallest
    number of blocks that any of the ranks has room for.

    Raises StartupError if the memory of the device, or the host's for the host tier, doesn't
    suffice.
    """
    use_device(recipe.device)
    memory = memory_of(recipe.device)
    START.passed("reading headers")
    try:
        build = recipe.build()
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise StartupError(f"not enough memory on the device for the weights: {error}") from error
    memory.release()  # Temporary memory of loading.
    START.passed("weights read and laid out", reads=True)
    with ranks.waiting():
        blocks = _kv_blocks(recipe, setup, memory, build, profile)
    START.passed("kernels and trial steps")
    blocks, host_blocks = ranks.least([blocks, setup.host_kv_bytes // recipe.block_bytes])
    try:
        with ranks.waiting():
            forward = build(blocks + _own_blocks(recipe))
    except torch.OutOfMemoryError as error:
        raise StartupError(
            f"not enough memory on the device for {blocks} KV blocks: {error}"
        ) from error
    START.passed("KV cache")

    def rehearse() -> None:
        with ranks.waiting():
            _compile(recipe, build)
            for step in _steps(build, profile):
                step()
            memory.wait()

    return DevicePool(forward, _copies(forward, setup, host_blocks), blocks, rehearse)


@dataclass(frozen=True)
class ProfileRun:
    """Samples as the largest possible step does: one row per slot, with every option that a request
    may have."""

    sampler: DeviceSampler
    setup: Setup
    vocab: int
    ranks: Ranks

    def sample(self, logits: Tensor) -> None:
        """`logits` is [at least max_num_seqs, vocab]. Does nothing in a stage that doesn't
        sample."""
        if not self.ranks.place.last:
            return
        slots = list(range(self.setup.max_num_seqs))
        adjusted = LogitsAdjustments(frequency=0.1, repetition=1.1, bias={0: 1.0})
        sampling = TokenSampling(0, top_p=0.9, logprobs=1, adjustments=adjusted)
        requests = [
            SampleRequest(sampling, 0, 0, adjustments=adjustments_of(sampling, [0], 1, self.vocab))
            for _ in slots
        ]
        self.sampler.launch(logits[: len(slots)], requests, slots).sampled()
        for slot in slots:
            self.sampler.forget(slot)


def _kv_blocks(
    recipe: DeviceRecipe,
    setup: Setup,
    memory: DeviceMemory,
    build: DeviceBuild,
    profile: Callable[[Tensor], None],
) -> int:
    try:
        _compile(recipe, build)
    except torch.OutOfMemoryError as error:
        raise StartupError(f"not enough memory on the device for a step: {error}") from error
    prefill, decode = _steps(build, profile)
    usage = measure(memory, prefill, decode, graphs=recipe.graphs, graph_bytes=GRAPH_BYTES)
    log.info("trial runs of the largest steps are complete", memory=str(usage))
    if recipe.media is not None:
        usage = replace(usage, steps=usage.steps + recipe.media.nbytes)
    aside = _own_blocks(recipe) * recipe.block_bytes
    if wants_store(setup):
        aside += staging_bytes(recipe.block_bytes)
    usage = replace(usage, steps=usage.steps + aside)
    interpreted = recipe.device.type == "cpu"
    return device_kv_blocks(
        usage,
        block_bytes=recipe.block_bytes,
        utilization=setup.kv_memory_fraction if interpreted else setup.gpu_memory_utilization,
        wanted=setup.num_kv_blocks,
        useful=setup.max_num_seqs * longest_blocks(setup, recipe.kv_groups),
        least=blocks_needed(recipe.kv_groups, 1, setup.block_size),
    )


def _own_blocks(recipe: DeviceRecipe) -> int:
    """Returns the KV blocks that states take in addition to those that the engine core knows of."""
    return 0 if recipe.states is None else recipe.states.own_blocks


def _compile(recipe: DeviceRecipe, build: DeviceBuild) -> None:
    """Compiles the kernels, so that no request waits for that. Triton's interpreter compiles
    none."""
    if recipe.device.type == "cuda":
        build.rehearse()


def _steps(
    build: DeviceBuild, profile: Callable[[Tensor], None]
) -> tuple[Callable[[], None], Callable[[], None]]:
    """The largest steps, in the order in which all ranks queue them."""
    return lambda: profile(build.widest_prefill()), lambda: profile(build.longest_decode())


def _copies(forward: DeviceForward, setup: Setup, host_blocks: int) -> DeviceBlockCopies:
    free = free_memory()
    if setup.host_kv_bytes > free:
        raise StartupError(
            f"not enough memory for the host tier: it takes {setup.host_kv_bytes:,} bytes, and "
            f"{free:,} are free"
        )
    try:
        copies = DeviceBlockCopies(forward.blocks(), host_blocks)
        if forward.device.type == "cuda":
            copies.rehearse()
        return copies
    except (MemoryError, RuntimeError) as error:
        raise StartupError(
            f"not enough memory for the host tier of {host_blocks} KV blocks: {error}"
        ) from error
