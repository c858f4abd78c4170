"""The kernels one by one: what is timed of them, in which shapes."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import torch

from loadtest.gpu.extent import Extent
from loadtest.gpu.job import Job
from loadtest.gpu.parts import kernels_rows as by_row
from loadtest.gpu.parts.cases import Case, time_cases
from loadtest.gpu.parts.kernels_attention import by_backend, chunk, decode, flash_chunk
from loadtest.gpu.parts.kernels_experts import ExpertShape
from loadtest.gpu.parts.kernels_products import (
    BFLOAT16,
    FP8,
    FP8_AS_SERVED,
    KINDS,
    MATRIX,
    Format,
    gguf,
    packed,
    product_cases,
)
from loadtest.gpu.shapes import MODELS
from penstock.model.config import ModelConfig
from penstock_worker.attention.flash_choice import MODULE


def run(job: Job) -> None:
    time_cases(job, CASES[job.part.name](job.extent, MODELS[job.extent.kernels]))


def rows(extent: Extent, config: ModelConfig) -> Iterator[Case]:
    for count in extent.rows:
        for case in (by_row.norm, by_row.add_norm, by_row.gate, by_row.rotation):
            yield case(config, count)
    for kind in by_row.DRAWS:
        yield by_row.draw(config, extent.sampled_rows, kind)
    yield by_row.copies(config, extent.copied_blocks)


def attention(extent: Extent, config: ModelConfig) -> Iterator[Case]:
    for batch, context in extent.decode:
        yield decode(config, batch, context)
    for sequences, before, new in extent.chunks:
        yield chunk(config, sequences, before, new)
        if find_spec(MODULE) is not None:
            yield flash_chunk(config, sequences, before, new)
    for sequences, before, new in extent.chunks:
        if not before:
            yield from (by_backend(config, sequences, new, name) for name in extent.backends)
    yield decode(config, *extent.decode[0], invariant=True)
    yield decode(config, *extent.decode[0], cache=torch.float8_e4m3fn)
    yield chunk(config, *extent.chunks[0], invariant=True)


def products(extent: Extent, config: ModelConfig) -> Iterator[Case]:
    formats: list[tuple[str, Format, tuple[int, ...], tuple[str, ...]]] = [
        # Nobody asks for the logits of thousands of rows.
        ("invariant", BFLOAT16, extent.product_rows, ("qkv", MATRIX, "down")),
        ("invariant", BFLOAT16, extent.product_rows[:-1], ("head",)),
        *((f"int{bits} weights", packed(bits), extent.packed_rows, (MATRIX,)) for bits in (4, 8)),
        *((f"{kind} weights", gguf(kind), extent.packed_rows, (MATRIX,)) for kind in KINDS),
        ("fp8", FP8, extent.fp8_rows, (MATRIX,)),
        ("fp8 as served", FP8_AS_SERVED, extent.fp8_rows, (MATRIX,)),
    ]
    for name, form, counts, wanted in formats:
        for matrix in wanted:
            yield from product_cases(config, form, counts, f"{matrix}: ", matrix, f"linear, {name}")
    yield from ExpertShape(*extent.experts).cases(extent.expert_rows)


CASES = {"kernels-rows": rows, "kernels-attention": attention, "kernels-products": products}
"""Cases by the part's name."""
