"""Whole models that are read from files, as a user's are: in formats, and by ways, that no random
load has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from loadtest.gpu.extent import Mode
from loadtest.gpu.job import Job
from loadtest.gpu.parts.steps import (
    measure_decode,
    release_memory,
    room,
    runner_of,
    setup,
    stepper_of,
)
from loadtest.gpu.stored_models import write_fp8, write_gguf, write_shapes
from penstock.prepare import prepare

AS_FILED = "as filed"
"""In the place of a mode's quantization: the weights' bytes aren't those of bfloat16."""


@dataclass(frozen=True)
class Filed:
    """write: (job, path) to the model's folder or file, once.  changes: of the worker's
    setup.  rehearsed: False where another one rehearses the same code."""

    name: str
    write: Callable[[Job, Path], Path]
    batches: tuple[int, ...] = (64, 8, 1)
    changes: dict[str, Any] = field(default_factory=dict)
    rehearsed: bool = True


def run(job: Job) -> None:
    """The part's models, one after the other: one on disk, and one on the device, at a time."""
    written: dict[Any, Path] = {}
    for filed in FILES[job.part.name]:
        if job.extent.dry and not filed.rehearsed:
            continue
        job.need(5.0)
        with job.attempt(filed.name):
            if filed.write not in written:
                at = job.work / job.part.name / str(len(written))
                at.parent.mkdir(parents=True, exist_ok=True)
                written[filed.write] = prepare(
                    str(filed.write(job, at)), cache_dir=job.work / "cache"
                )
            measure(job, filed, written[filed.write])
        release_memory()


def measure(job: Job, filed: Filed, folder: Path) -> None:
    extent = job.extent
    batches = filed.batches[-1:] if extent.dry else filed.batches
    mode = Mode(filed.name, batches, quantization=AS_FILED)
    asked = msgspec.structs.replace(
        setup(extent, folder, mode, job.device.type),
        quantization="none",
        enforce_eager=extent.dry,  # There are no graphs to rehearse, and each would be computed.
        **{"load_format": "auto", "dtype": "auto", **filed.changes},
    )
    what = {"model": filed.name, "mode": "default"}
    with runner_of(job, asked, **what) as runner:
        measure_decode(job, stepper_of(runner, job, room(extent)), mode, what)


def q4_k_m(job: Job, path: Path) -> Path:
    return write_gguf(path.with_suffix(".gguf"), job.extent.q4_k, job.config.vocab_size)


def mixture(job: Job, path: Path) -> Path:
    return write_shapes(job.extent.mixture, path)


def fp8_mixture(job: Job, path: Path) -> Path:
    return write_fp8(replace(job.extent.mixture, layers=job.extent.filed_layers), path)


def q4_k_mixture(job: Job, path: Path) -> Path:
    return write_gguf(path.with_suffix(".gguf"), job.extent.hosted, job.config.vocab_size)


FILES = {
    "steps-0-q4k": (Filed("Llama-3.1-8B, Q4_K_M", q4_k_m),),
    "steps-1-mixture": (
        Filed(
            "Qwen3-30B-A3B, bfloat16",
            mixture,
            changes={"load_format": "dummy", "dtype": "bfloat16"},
        ),
        Filed("Qwen3-30B-A3B, FP8 blocks, 12 of 48 layers", fp8_mixture),
    ),
    "steps-1-host": tuple(
        Filed(
            f"Qwen3-30B-A3B, Q4_K_M, 8 of 48 layers, experts of {layers} in the host's memory",
            q4_k_mixture,
            batches=(8, 1),
            changes={"cpu_experts": layers},
            rehearsed=layers == "all",
        )
        for layers in ("0", "all")
    ),
}
"""The files of each part. What is cut to fewer layers would take longer to write than to
measure."""
