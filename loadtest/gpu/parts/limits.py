"""The machine's own limits: bytes copied per second, and bfloat16 operations."""

from __future__ import annotations

import torch

from loadtest.gpu.cost import product_flops
from loadtest.gpu.job import Job
from loadtest.gpu.timing import Timer


def run(job: Job) -> None:
    extent, device = job.extent, job.device
    timer = Timer(device, max(extent.repeats // 2, 1))
    with torch.inference_mode():
        source = torch.zeros(extent.copy_bytes, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        seconds = timer(lambda: target.copy_(source)).seconds
        job.row(name="copy", size=extent.copy_bytes, per_s=2 * extent.copy_bytes / seconds)
        del target
        words = source.view(torch.int32)
        seconds = timer(lambda: words.max()).seconds
        job.row(name="read", size=extent.copy_bytes, per_s=extent.copy_bytes / seconds)
        del source, words
        for side in extent.matrix:
            job.need()
            # Random, as zeros take less power and run faster.
            left, right = (torch.randn(side, side, device=device).bfloat16() for _ in range(2))
            seconds = timer(lambda a=left, b=right: a @ b).seconds
            job.row(name="matrix", size=side, per_s=product_flops(side, side, side) / seconds)
