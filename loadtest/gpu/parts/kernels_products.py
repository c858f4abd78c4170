"""Matrix products: this project's beside torch's (cuBLAS)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.nn.functional as functional
from torch import Tensor

from loadtest.gpu.cost import product_bytes, product_flops
from loadtest.gpu.job import Job, absent
from loadtest.gpu.parts.cases import Case, time_cases
from loadtest.gpu.shapes import MODELS
from loadtest.gpu.timing import Work
from penstock.model_config import ModelConfig
from penstock_kernels.triton.linear import fp8_linear, weight_only
from penstock_kernels.triton.linear.dense import linear
from penstock_kernels.triton.linear.gguf_linear import gguf_linear
from penstock_kernels.triton.linear.gguf_weights import GROUP as GGUF_GROUP
from penstock_kernels.triton.linear.gguf_weights import GGUFWeights, empty
from penstock_worker.weights.repacking import LAYOUTS

OPS = "penstock_worker.layers.triton_ops"
GROUP = 128


def run(job: Job) -> None:
    if absent([OPS]):
        job.note(f"not present: {OPS}, whose default products would be timed too")
    time_cases(job, cases(job, MODELS[job.extent.kernels]))


def matrices(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """(outputs, inputs) of a layer's stacked matrices and of the head."""
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    return {
        "qkv": ((config.num_heads + 2 * config.num_kv_heads) * dim, hidden),
        "gate, up": (2 * inner, hidden),
        "down": (hidden, inner),
        "head": (config.vocab_size, hidden),
    }


def cases(job: Job, config: ModelConfig) -> Iterator[Case]:
    extent, device = job.extent, job.device
    for name, (outputs, inputs) in matrices(config).items():
        weight = drawn(device, outputs, inputs)
        # Nobody asks for the logits of thousands of rows.
        wanted = extent.product_rows if name != "head" else extent.product_rows[:-1]
        for rows in wanted:
            x = drawn(device, rows, inputs)
            yield product("linear, invariant", name, x, weight, lambda x=x, w=weight: linear(x, w))
            if not absent([OPS]):
                yield product("linear, default", name, x, weight, default_product(x, weight))
    outputs, inputs = matrices(config)["gate, up"]
    weight = drawn(device, outputs, inputs)
    for bits in (4, 8):
        packed = weight_only.pack(weight, bits=bits, group=GROUP)
        for rows in extent.packed_rows:
            x = drawn(device, rows, inputs)
            yield product(
                f"linear, int{bits} weights",
                "gate, up",
                x,
                weight,
                lambda x=x, p=packed: weight_only.weight_only_linear(x, p),
                weight_bytes=bits / 8 + packed.scales.itemsize / GROUP,
            )
    for kind in ("Q8_0", "Q4_K"):
        kept = of_a_gguf(kind, outputs, inputs, device)
        for rows in extent.packed_rows:
            x = drawn(device, rows, inputs)
            yield product(
                f"linear, {kind} weights",
                "gate, up",
                x,
                weight,
                lambda x=x, k=kept: gguf_linear(x, k),
                weight_bytes=kept.nbytes / (outputs * inputs),
            )
    levels, scales = fp8_linear.quantise_fp8(weight)
    for rows in extent.fp8_rows:
        x = drawn(device, rows, inputs)
        yield product(
            "linear, fp8",
            "gate, up",
            x,
            weight,
            lambda x=x, w=levels, s=scales: fp8_linear.fp8_linear(x, w, s),
            weight_bytes=1.0,
        )


def of_a_gguf(kind: str, outputs: int, inputs: int, device: torch.device) -> GGUFWeights:
    """Weights as a GGUF file of that type has them, all of one value: no time depends on it."""
    layout = LAYOUTS[kind]
    if inputs % layout.unit:
        layout = replace(layout, unit=GGUF_GROUP)
    weights = empty(layout, outputs, inputs, device)
    for tensor in weights.tensors.values():
        tensor.fill_(1)
    return weights


def drawn(device: torch.device, *sizes: int) -> Tensor:
    return torch.randn(sizes, device=device).bfloat16()


def default_product(x: Tensor, weight: Tensor) -> Work:
    from penstock_worker.layers.triton_ops import TritonOps

    ops = TritonOps(x.device, x.dtype, batch_invariant=False, quantization="none")
    multiply = ops.product(weight)
    return lambda: multiply(x)


def product(
    op: str, name: str, x: Tensor, weight: Tensor, work: Work, weight_bytes: float = 2.0
) -> Case:
    rows, inputs = x.shape
    outputs = weight.shape[0]
    return Case(
        op,
        f"{name}: {rows} x {inputs} x {outputs}",
        work,
        size=product_bytes(rows, inputs, outputs, weight_bytes),
        flops=product_flops(rows, inputs, outputs),
        torch="linear, bfloat16",
        torch_work=lambda: functional.linear(x, weight),
    )
