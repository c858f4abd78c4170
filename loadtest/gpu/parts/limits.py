"""The machine's own limits: bytes copied per second, and bfloat16 operations."""

from __future__ import annotations

import torch

from loadtest.gpu.cost import product_flops
from loadtest.gpu.job import Job
from loadtest.gpu.timing import Timer


def run(job: Job) -> None:
    timer = Timer(job.device, max(job.extent.repeats // 2, 1))
    with torch.inference_mode():
        bandwidth(job, timer)
        for side in job.extent.matrix:
            job.need()
            products(job, timer, side)


def bandwidth(job: Job, timer: Timer) -> None:
    size = job.extent.copy_bytes
    source = torch.zeros(size, dtype=torch.uint8, device=job.device)
    target = torch.empty_like(source)
    seconds = timer(lambda: target.copy_(source)).seconds
    job.row(name="copy", size=size, per_s=2 * size / seconds)
    words = source.view(torch.int32)
    seconds = timer(lambda: words.max()).seconds
    job.row(name="read", size=size, per_s=size / seconds)


def products(job: Job, timer: Timer, side: int) -> None:
    # Random, as zeros take less power and run faster.
    left, right = (torch.randn(side, side, device=job.device).bfloat16() for _ in range(2))
    seconds = timer(lambda: left @ right).seconds
    job.row(name="matrix", size=side, per_s=product_flops(side, side, side) / seconds)
