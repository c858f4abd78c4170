"""Products by Humming, beside cuBLAS in bfloat16: 4-bit levels, FP8 in blocks of 128 and MXFP4, as
it chooses its kernels, and as it does where rows must have the same bits in any batch.

The package (`humming-kernels`, which vLLM multiplies quantised weights by) is none that the worker
uses: this measures whether it should be. Here nothing is compiled before a card is there.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor

from loadtest.gpu.cost import product_bytes, product_flops
from loadtest.gpu.job import Job
from loadtest.gpu.parts.cases import Bench, Case, drawn, time_cases
from loadtest.gpu.parts.kernels_products import MATRIX, matrices
from loadtest.gpu.shapes import MODELS

PACKAGE, MODULE = "humming-kernels", "humming"
INVARIANT = {"use_batch_invariant": True}


@dataclass(frozen=True)
class Form:
    """config: of the weights, in Humming's words.  weight_bytes: of one, with its share of the
    scales."""

    name: str
    config: dict[str, Any]
    weight_bytes: float


FORMS = (
    Form("int4", {"dtype": "uint4", "group_size": 128}, 0.5 + 2 / 128),
    Form("FP8 blocks", {"dtype": "float8e4m3", "group_size": 128, "group_size_n": 128}, 1.0),
    Form(
        "MXFP4",
        {"dtype": "float4e2m1", "group_size": 32, "scale_dtype": "float8e8m0"},
        0.5 + 1 / 32,
    ),
)


def run(job: Job) -> None:
    """Raises ModuleNotFoundError without the package."""
    if find_spec(MODULE) is None:
        raise ModuleNotFoundError(f"{PACKAGE} isn't installed", name=MODULE)
    job.note(f"{PACKAGE} {importlib.metadata.version(PACKAGE)}")
    if job.device.type != "cuda":
        job.note("it compiles for the card that it finds: nothing of it can be tried here")
        return
    os.environ.setdefault("HUMMING_CACHE_DIR", str(job.work / "humming"))
    time_cases(job, cases(job))
    with torch.inference_mode(), job.attempt("rows by Humming"):
        rows_alike(job)


def cases(job: Job) -> Iterator[Case]:
    outputs, inputs = matrices(MODELS[job.extent.kernels])[MATRIX]
    for form in FORMS:
        for invariant in (False, True):
            how = ", batch-invariant" if invariant else ""
            for rows in job.extent.packed_rows:
                case = product(form, rows, outputs, inputs, invariant=invariant)
                yield replace(case, op=f"linear, Humming, {form.name}{how}")


def product(form: Form, rows: int, outputs: int, inputs: int, *, invariant: bool) -> Case:
    def make(device: torch.device) -> Bench:
        layer, weight = quantised(form, outputs, inputs, device)
        x = drawn(device, rows, inputs)
        compute = INVARIANT if invariant else None
        return Bench(
            lambda _: lambda: layer(x, compute_config=compute),
            torch=lambda: functional.linear(x, weight),
        )

    return Case(
        f"{MATRIX}: {rows} x {inputs} x {outputs}",
        make,
        size=product_bytes(rows, inputs, outputs, form.weight_bytes),
        flops=product_flops(rows, inputs, outputs),
        torch="linear, bfloat16",
    )


def quantised(form: Form, outputs: int, inputs: int, device: torch.device) -> tuple[Any, Tensor]:
    """Returns Humming's layer, and the matrix that it was made from."""
    weight = drawn(device, outputs, inputs)
    layer = (
        importlib.import_module(f"{MODULE}.layer")
        .HummingLayer(
            shape_n=outputs,
            shape_k=inputs,
            weight_config=dict(form.config),
            torch_dtype=torch.bfloat16,
        )
        .to(device)
    )
    layer.load_from_unquantized(weight)
    layer.transform()
    return layer, weight


def rows_alike(job: Job) -> None:
    """Whether its batch-invariant rows have the same bits among any number, and how far a product
    is from that of the matrix before it was quantised, as a share of the largest number."""
    outputs, inputs = matrices(MODELS[job.extent.kernels])[MATRIX]
    most = max(job.extent.packed_rows)
    for form in FORMS:
        job.need(1.0)
        with job.attempt(f"rows by Humming, {form.name}"):
            layer, weight = quantised(form, outputs, inputs, job.device)
            x = drawn(job.device, most, inputs)
            whole = layer(x, compute_config=INVARIANT)
            unlike = [
                count
                for count in range(1, most)
                if not torch.equal(layer(x[:count], compute_config=INVARIANT), whole[:count])
            ]
            true = x.float() @ weight.float().T
            apart = float((whole.float() - true).abs().max() / true.abs().max())
            shape = f"{most} x {inputs} x {outputs}, Humming, {form.name}, {apart:.2g} apart"
            job.row(what="rows alike", shape=shape, unlike=unlike)
