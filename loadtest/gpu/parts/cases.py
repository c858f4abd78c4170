"""Calls of kernels beside torch's own for the same work, one after the other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from loadtest.gpu.job import Job
from loadtest.gpu.timing import Timer, Work


@dataclass(frozen=True)
class Case:
    """op, shape: for people.  size, flops: at least so many bytes and operations.  torch: what it
    is held against, and torch_work that; empty and None where torch has nothing.  capturable:
    whether `work` may go into a CUDA graph."""

    op: str
    shape: str
    work: Work
    size: float = 0.0
    flops: float = 0.0
    torch: str = ""
    torch_work: Work | None = None
    capturable: bool = True


def time_cases(job: Job, cases: Iterable[Case]) -> None:
    """A row each. `cases` makes a case's tensors when it is that one's turn.

    Raises OutOfTime between two.
    """
    import torch

    timer = Timer(job.device, job.extent.repeats)
    with torch.inference_mode():
        for case in cases:
            job.need()
            what = f"{case.op} {case.shape}"
            with job.attempt(what):
                own = timer(case.work, capture=case.capturable)
                figures = {"seconds": own.seconds, "graph": own.graph}
                if case.torch_work is not None:
                    with job.attempt(f"{what}: {case.torch}"):
                        other = timer(case.torch_work)
                        figures["torch_seconds"] = other.seconds
                        figures["torch_graph"] = other.graph
                job.row(
                    op=case.op,
                    shape=case.shape,
                    bytes=case.size,
                    flops=case.flops,
                    torch=case.torch,
                    **figures,
                )
