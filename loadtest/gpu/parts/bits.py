"""Which numbers of rows give a row the same bits: of the library's products, that is cuBLAS's, and
of ours in tiles that a processor multiplies by other instructions.

A product whose rows have the same bits in any company could stand in for our batch-invariant one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from loadtest.gpu.job import Job
from loadtest.gpu.parts.cases import drawn
from loadtest.gpu.parts.steps import release_memory
from loadtest.gpu.shapes import MODELS
from penstock.model.config import ModelConfig

Product = Callable[[Tensor, Tensor], Tensor]


def run(job: Job) -> None:
    with torch.inference_mode():
        for name, (outputs, inputs) in matrices(MODELS[job.extent.kernels]).items():
            job.need(1.0)
            with job.attempt(name):
                x = drawn(job.device, max(job.extent.alike_rows), inputs)
                weight = drawn(job.device, outputs, inputs)
                shape = f"{name}: {inputs} x {outputs}"
                found = groups(torch.nn.functional.linear, x, weight, job.extent.alike_rows)
                job.row(what="bits", product="library", shape=shape, groups=found)
                job.row(what="bits", product="tiles", shape=shape, groups=of_tiles(x, weight))
            release_memory()


def matrices(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """(outputs, inputs) of a layer's matrices."""
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return {
        "qkv": (queries + 2 * keys, config.hidden_size),
        "out": (config.hidden_size, queries),
        "gate, up": (2 * config.intermediate_size, config.hidden_size),
        "down": (config.hidden_size, config.intermediate_size),
    }


def groups(product: Product, x: Tensor, weight: Tensor, counts: Iterable[int]) -> list[list[int]]:
    """Returns the numbers of rows by what they give: each list has numbers whose results agree in
    all rows that two of them have."""
    found: list[tuple[Tensor, list[int]]] = []
    for count in sorted(counts, reverse=True):
        result = product(x[:count], weight)
        for whole, members in found:
            if torch.equal(whole[:count], result):
                members.append(count)
                break
        else:
            found.append((result, [count]))
    return [sorted(members) for _, members in found]


def of_tiles(x: Tensor, weight: Tensor) -> list[list[str]]:
    """Returns our tiles, by their rows and columns, in lists of those that give the same bits. Of
    16 rows `mma.sync` multiplies; of 64 and more, and where the matrix is the left operand,
    `wgmma`, where a processor has it."""
    from penstock_kernels.triton.linear.dense import linear
    from penstock_kernels.triton.matmul_tiles import INVARIANT_FEW, INVARIANT_MANY, INVARIANT_NARROW

    by_bits: dict[str, list[str]] = {}
    left = [tiles for tiles in (*INVARIANT_FEW, *INVARIANT_MANY) if tiles != INVARIANT_NARROW]
    right = (INVARIANT_FEW[0], *INVARIANT_MANY)
    for tiles, first in (*((each, False) for each in right), *((each, True) for each in left)):
        result = linear(x[:64], weight, tiles=tiles, weights_first=first)
        digest = hashlib.sha256(result.view(torch.int16).cpu().numpy().tobytes()).hexdigest()
        name = f"{tiles.rows} x {tiles.columns}" + ", weights first" * first
        by_bits.setdefault(digest, []).append(name)
    return list(by_bits.values())
