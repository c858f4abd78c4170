"""Steps with a prompt's chunk beside decodes, through the worker's runner: as CUDA graphs, and the
same ones launched kernel by kernel."""

from __future__ import annotations

from pathlib import Path

from loadtest.gpu.cost import ModelCost
from loadtest.gpu.extent import Extent, Mode
from loadtest.gpu.job import Job
from loadtest.gpu.parts.steps import release_memory, runner_of, setup_of, stepper_of
from loadtest.gpu.stepper import Stepper
from penstock.prepare import prepare
from penstock.protocol.to_worker import Setup


def run(job: Job) -> None:
    folder = prepare(str(job.model_folder()), cache_dir=job.work / "cache")
    for mode in job.extent.mixed_modes:
        job.need(5.0)
        with job.attempt(mode.name):
            measure(job, folder, mode)
        release_memory()


def measure(job: Job, folder: Path, mode: Mode) -> None:
    asked = setup(job.extent, folder, mode, job.device.type)
    with runner_of(job, asked, model=job.model, mode=mode.name) as runner:
        stepper = stepper_of(runner, job, room(job.extent))
        for decodes, chunk in job.extent.mixed:
            job.need(2.0)
            padded = padded_rows(asked, job, decodes + chunk)
            measure_kind(job, stepper, decodes, chunk, {"mode": mode.name, "padded": padded})


def setup(extent: Extent, folder: Path, mode: Mode, device: str) -> Setup:
    """The decodes have their slots, and the prompt one more."""
    slots = max(decodes for decodes, _ in extent.mixed) + 1
    longest = max(room(extent), prompt(extent) + 1)
    tokens = (slots - 1) * room(extent) + longest
    return setup_of(extent, folder, mode, device, slots=slots, longest=longest, tokens=tokens)


def room(extent: Extent) -> int:
    """Tokens that a decoding sequence comes to beside one kind of chunk."""
    return extent.context + extent.warm_steps + extent.mixed_steps + 1


def prompt(extent: Extent) -> int:
    """Tokens of the longest prompt, so many that each step has a whole chunk."""
    return (extent.warm_steps + extent.mixed_steps) * max(chunk for _, chunk in extent.mixed)


def padded_rows(asked: Setup, job: Job, rows: int) -> int | None:
    """Rows of the graph that computes a step of so many; None: it has none."""
    from penstock_worker.forward.buckets import mixed_rows

    if asked.enforce_eager:
        return None
    return next((each for each in mixed_rows(asked, job.config) if each >= rows), None)


def measure_kind(
    job: Job, stepper: Stepper, decodes: int, chunk: int, what: dict[str, str | int | None]
) -> None:
    """A row of one kind of step.  Its sequences are its own."""
    extent, cost = job.extent, ModelCost(job.config)
    if decodes:
        stepper.prefill(range(decodes), extent.context)
    slot = decodes
    stepper.begin_prompt(slot, (extent.warm_steps + extent.mixed_steps) * chunk)
    stepper.mixed(decodes, slot, chunk, extent.warm_steps)
    begun = stepper.clock()
    stepper.mixed(decodes, slot, chunk, extent.mixed_steps)
    seconds = (stepper.ended[-1] - begun) / extent.mixed_steps
    stepper.forget()
    # In the middle of the timed steps.
    past = extent.warm_steps + extent.mixed_steps // 2
    context, before = extent.context + past, past * chunk
    job.row(
        what="mixed",
        model=job.model,
        decodes=decodes,
        chunk=chunk,
        context=context,
        before=before,
        seconds=seconds,
        tokens=decodes + chunk,
        bytes=cost.mixed_bytes(decodes, context, before, chunk),
        flops=cost.prefill_flops([(context - 1, 1)] * decodes + [(before, chunk)]),
        **what,
    )
