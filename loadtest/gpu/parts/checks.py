"""Each kernel once, beside a reference in float32, and a product's rows alone beside all of them:
the first minute on a device that none of this has run on."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from loadtest.gpu.job import Job
from loadtest.gpu.parts.cases import Case, drawn
from loadtest.gpu.parts.kernels import CASES
from loadtest.gpu.parts.steps import release_memory
from loadtest.gpu.shapes import MODELS
from loadtest.gpu.tiles import TOLERANCE, distance

ORDER = ("kernels-attention", "kernels-rows", "kernels-products")
"""Parts in the order in which a served model needs them."""


def run(job: Job) -> None:
    with torch.inference_mode():
        with job.attempt("a product's rows"):
            rows_alike(job)
        for case in kinds(job):
            job.need()
            with job.attempt(f"{case.op} {case.shape}"):
                check(job, case)
            release_memory()


def rows_alike(job: Job) -> None:
    """The first n rows of a product have the same bits, for any n, as among all of them."""
    from penstock_kernels.triton.linear.dense import linear

    rows, outputs, inputs = job.extent.alike
    x, weight = drawn(job.device, rows, inputs), drawn(job.device, outputs, inputs)
    whole = linear(x, weight)
    unlike = [n for n in range(1, rows) if not torch.equal(linear(x[:n], weight), whole[:n])]
    job.row(what="rows alike", shape=f"{rows} x {inputs} x {outputs}", unlike=unlike)
    if unlike:
        job.fault(f"a product of {unlike} rows has other bits than that of {rows}")


def kinds(job: Job) -> Iterator[Case]:
    """One case of each operation: the first, which is the one that a decode has."""
    seen = set()
    for name in ORDER:
        for case in CASES[name](job.extent, MODELS[job.extent.kernels]):
            if case.op not in seen:
                seen.add(case.op)
                yield case


def check(job: Job, case: Case) -> None:
    bench = case.make(job.device)
    # Before the call, which may write over what it reads.
    wanted = None if bench.reference is None else bench.reference()
    got = bench.work(None)()
    if job.device.type == "cuda":
        torch.cuda.synchronize()
    error = None
    if wanted is not None:
        error = distance(bench.sample(got), wanted, exact=bench.exact)  # type: ignore[arg-type]
    job.row(what="check", op=case.op, shape=case.shape, error=error)
    if error is not None and not error <= (0 if bench.exact else TOLERANCE):
        job.fault(f"{case.op} {case.shape} is off by {error:.2g} of the reference")
