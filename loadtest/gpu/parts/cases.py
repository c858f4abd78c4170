"""Calls of kernels in one shape: beside torch's own for the same work, or with other tile sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from loadtest.gpu.job import Job
from loadtest.gpu.timing import Timer, Work

Tiles = Any
"""A frozen dataclass of whole numbers: AttentionTiles, MatmulTiles, or what a module has made; None
for those that the kernel chooses."""


@dataclass(frozen=True)
class Bench:
    """A shape's tensors, on a device."""

    work: Callable[[Tiles], Work]  # tiles to the call that is timed
    reference: Callable[[], Tensor] | None = None
    """What the call should return, [..., values], computed by other means; called once."""
    sample: Callable[[Tensor], Tensor] = lambda result: result
    """The part of a result that `reference` has."""
    exact: bool = False  # results are whole numbers: equal or wrong
    torch: Work | None = None  # the same by torch


@dataclass(frozen=True)
class Case:
    shape: str  # for people
    make: Callable[[torch.device], Bench]
    op: str = ""  # for people
    size: float = 0.0  # bytes that must move, at least
    flops: float = 0.0  # operations that must be made, at least
    torch: str = ""  # what of torch it is held against; empty where torch has nothing
    capturable: bool = True  # whether the call may go into a CUDA graph


def time_cases(job: Job, cases: Iterable[Case]) -> None:
    """A row each. A case's tensors are made when it is its turn. Raises OutOfTime between two."""
    timer = Timer(job.device, job.extent.repeats)
    with torch.inference_mode():
        for case in cases:
            job.need()
            what = f"{case.op} {case.shape}"
            with job.attempt(what):
                bench = case.make(job.device)
                own = timer(bench.work(None), capture=case.capturable)
                figures = {"seconds": own.seconds, "graph": own.graph}
                if bench.torch is not None:
                    with job.attempt(f"{what}: {case.torch}", own=False):
                        figures["torch_seconds"] = timer(bench.torch).seconds
                job.row(
                    op=case.op,
                    shape=case.shape,
                    bytes=case.size,
                    flops=case.flops,
                    torch=case.torch,
                    **figures,
                )


def drawn(device: torch.device, *sizes: int) -> Tensor:
    """Normally distributed, bfloat16."""
    return torch.randn(sizes, device=device).bfloat16()
