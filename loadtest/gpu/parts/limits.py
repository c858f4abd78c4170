"""The machine's own limits: bytes read and copied per second, on the device and to it and from it,
and bfloat16 operations."""

from __future__ import annotations

import torch

from loadtest.gpu.cost import product_flops
from loadtest.gpu.job import Job
from loadtest.gpu.timing import Timer, Work


def run(job: Job) -> None:
    timer = Timer(job.device, max(job.extent.repeats // 2, 1))
    with torch.inference_mode():
        bandwidth(job, timer)
        job.need()
        transfers(job, timer)
        for side in job.extent.matrix:
            job.need()
            products(job, timer, side)


def bandwidth(job: Job, timer: Timer) -> None:
    """Measures copies, whose bytes count twice, as they are read and written. The driver copies by
    an engine or a kernel of its own choice, so a copy by a kernel stands beside it."""
    size = job.extent.copy_bytes
    source = torch.zeros(size // 4, dtype=torch.int32, device=job.device)
    target = torch.empty_like(source)
    works: dict[str, tuple[Work, int]] = {
        "copy by the driver": (lambda: target.copy_(source), 2),
        "copy": (lambda: torch.neg(source, out=target), 2),
        "read": (lambda: source.max(), 1),
    }
    for name, (work, times) in works.items():
        job.row(name=name, size=size, per_s=times * size / timer(work).seconds)


def transfers(job: Job, timer: Timer) -> None:
    """To the device and back, from memory that the device reaches by itself where there is one."""
    size, pinned = job.extent.host_bytes, job.device.type == "cuda"
    host = torch.zeros(size, dtype=torch.uint8, pin_memory=pinned)
    there = torch.zeros(size, dtype=torch.uint8, device=job.device)
    works: dict[str, Work] = {
        "host to device": lambda: there.copy_(host, non_blocking=True),
        "device to host": lambda: host.copy_(there, non_blocking=True),
    }
    for name, work in works.items():
        job.row(name=name, size=size, per_s=size / timer(work).seconds)


def products(job: Job, timer: Timer, side: int) -> None:
    # Random, as zeros take less power and run faster.
    left, right = (torch.randn(side, side, device=job.device).bfloat16() for _ in range(2))
    seconds = timer(lambda: left @ right).seconds
    job.row(name="matrix", size=side, per_s=product_flops(side, side, side) / seconds)
