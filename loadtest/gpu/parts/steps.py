"""Decode and prefill through the worker's runner, without an engine core: tokens per second against
what the machine's limits allow, and how long the device idles between decode steps."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadtest.gpu.cost import ModelCost
from loadtest.gpu.device_profile import device_time, kernel_times, profiled
from loadtest.gpu.extent import Extent, Mode
from loadtest.gpu.job import Job
from loadtest.gpu.stepper import Stepper
from penstock.prepare import prepare
from penstock.protocol import PROTOCOL_VERSIONS
from penstock.protocol.to_worker import Setup

if TYPE_CHECKING:
    import torch

BLOCK = 16
PROFILED_STEPS = 16
PREFILL_TIMES = 3
MODULE = "flash_attn_interface"
"""The module of FlashAttention 3 (penstock_worker.attention.flash_choice, which imports Triton)."""


def run(job: Job) -> None:
    folder = prepare(str(job.model_folder()), cache_dir=job.work / "cache")
    for mode in chosen_modes(job):
        if not mode.flash_attention_3 and find_spec(MODULE) is None:
            continue  # It would be the default again.
        if not mode.early_launches and not launches_early(job.device):
            job.note(f"{mode.name}: this device launches none early")
            continue
        job.need(5.0)
        with job.attempt(mode.name), launched_early(on=mode.early_launches):
            measure(job, folder, mode)
        release_memory()


def chosen_modes(job: Job) -> list[Mode]:
    """The modes that the part names; of a part that names none, all that are not for others."""
    named = job.part.modes
    if unknown := set(named) - {mode.name for mode in job.extent.modes}:
        raise ValueError(f"no modes {sorted(unknown)} in this extent")
    return [m for m in job.extent.modes if (m.name in named if named else not m.once)]


def launches_early(device: torch.device) -> bool:
    from penstock_kernels.triton.early import can_launch_early

    return can_launch_early(device)


@contextmanager
def launched_early(*, on: bool) -> Iterator[None]:
    """on: False: kernels that are compiled and captured while the context is open begin after the
    ones before them have ended."""
    from penstock_kernels.triton import early

    usual = early.can_launch_early
    early.can_launch_early = usual if on else lambda device: False
    early.launched_early.cache_clear()
    try:
        yield
    finally:
        early.can_launch_early = usual
        early.launched_early.cache_clear()


def measure(job: Job, folder: Path, mode: Mode) -> None:
    extent, what = job.extent, {"model": job.model, "mode": mode.name}
    with runner_of(job, setup(extent, folder, mode, job.device.type), **what) as runner:
        stepper = stepper_of(runner, job, room(extent))
        if mode.prefill:
            measure_prefill(job, stepper, what)
        measure_decode(job, stepper, mode, what)


@contextmanager
def runner_of(job: Job, asked: Setup, **what: str) -> Iterator[Any]:
    """A worker's runner, closed at the end. A row says how long loading took, with `what`."""
    from penstock_worker.loading.load import load

    loaded = load(asked)
    try:
        job.row(what="load", seconds=loaded.ready.load_seconds, **what)
        yield loaded.runner
    finally:
        loaded.runner.close()


def stepper_of(runner: Any, job: Job, room: int) -> Stepper:
    """room: tokens that a decoding sequence may come to."""
    return Stepper(
        runner, vocab=job.config.vocab_size, block=BLOCK, room=room, budget=job.extent.step_tokens
    )


def setup(extent: Extent, folder: Path, mode: Mode, device: str) -> Setup:
    longest = max([room(extent), *(length + 1 for _, length in extent.prefills)])
    slots = max([*mode.batches, *(count for count, _ in extent.prefills)])
    tokens = max(
        [max(mode.batches) * room(extent), *(count * longest for count, _ in extent.prefills)]
    )
    return setup_of(extent, folder, mode, device, slots=slots, longest=longest, tokens=tokens)


def setup_of(
    extent: Extent, folder: Path, mode: Mode, device: str, *, slots: int, longest: int, tokens: int
) -> Setup:
    """A worker for `slots` sequences of at most `longest` tokens, `tokens` of all together."""
    return Setup(
        version=PROTOCOL_VERSIONS[0],
        model_dir=str(folder),
        dtype="bfloat16",
        attention_backend="triton",
        threads=None,
        block_size=BLOCK,
        num_kv_blocks=-(-tokens // BLOCK) + slots,
        kv_memory_fraction=0.5,
        max_num_seqs=slots,
        max_num_batched_tokens=max(extent.step_tokens, slots),
        max_model_len=longest,
        device=device,
        batch_invariant=mode.batch_invariant,
        enforce_eager=mode.enforce_eager,
        flash_attention_3=mode.flash_attention_3,
        quantization=mode.quantization,
        load_format="dummy",
    )


def room(extent: Extent) -> int:
    """Tokens that a sequence comes to in the decode steps of a mode."""
    return max(extent.contexts) + extent.decode_steps + PROFILED_STEPS + 1


def measure_prefill(job: Job, stepper: Stepper, what: dict[str, str]) -> None:
    cost = ModelCost(job.config)
    times = 1 if job.extent.dry else PREFILL_TIMES
    for sequences, length in job.extent.prefills:
        job.need(3.0)
        stepper.prefill(range(sequences), length)
        stepper.forget()
        seconds = 0.0
        for _ in range(times):
            begun = stepper.clock()
            stepper.prefill(range(sequences), length)
            seconds += stepper.ended[-1] - begun
            stepper.forget()
        job.row(
            what="prefill",
            sequences=sequences,
            length=length,
            seconds=seconds / times,
            tokens=sequences * length,
            flops=cost.prefill_flops([(0, length)] * sequences),
            **what,
        )


def measure_decode(job: Job, stepper: Stepper, mode: Mode, what: dict[str, str]) -> None:
    """Each batch at each context, in the middle of the timed steps. Prompts are computed once; what
    is timed finds them in the cache."""
    extent, cost = job.extent, ModelCost(job.config)
    contexts = extent.contexts if mode.each_context else extent.contexts[:1]
    stepper.prefill(range(max(mode.batches)), begins_at(extent, max(contexts)))
    for context in contexts:
        for batch in sorted(mode.batches, reverse=True):
            job.need(2.0)
            stepper.forget()
            stepper.resume(range(batch), begins_at(extent, context))
            stepper.decode(batch, extent.warm_steps - 1)
            begun = stepper.clock()
            stepper.decode(batch, extent.decode_steps)
            seconds = (stepper.ended[-1] - begun) / extent.decode_steps
            job.row(
                what="decode",
                batch=batch,
                context=context,
                seconds=seconds,
                tokens=batch,
                **limited(cost.decode_bytes(batch, context), mode),
                **what,
            )
            if batch in mode.profiled:
                measure_profile(job, stepper, batch, context, seconds, what)


def limited(size: int, mode: Mode) -> dict[str, int]:
    """The bytes that a step of this mode moves at least. Of quantised weights, of which a layer may
    keep some as they are, none are counted."""
    return {"bytes": size} if mode.quantization == "none" else {}


def begins_at(extent: Extent, context: int) -> int:
    """Tokens of a sequence before its first step, so that it has `context` in the middle of those
    that are timed."""
    return max(context - extent.decode_steps // 2 - extent.warm_steps, 1)


def measure_profile(
    job: Job, stepper: Stepper, batch: int, context: int, seconds: float, what: dict[str, str]
) -> None:
    """seconds: of a step without the profiler."""
    if job.device.type != "cuda":
        job.note(f"batch {batch} at {context}: there is no device to profile")
        return
    with job.attempt("the device's profile"):
        found = profiled(lambda: stepper.decode(batch, PROFILED_STEPS))
        job.row(
            what="idle",
            batch=batch,
            context=context,
            steps=PROFILED_STEPS,
            step_seconds=seconds,
            **device_time(found, PROFILED_STEPS),
            kernels=kernel_times(found, PROFILED_STEPS),
            **what,
        )


def release_memory() -> None:
    """Releases the memory of a model that is not needed any more, before the next is loaded."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
