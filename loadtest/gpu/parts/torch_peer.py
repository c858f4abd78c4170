"""A peer in the same call: decode steps of the same shape by torch alone, that is by cuBLAS and
torch's attention over a contiguous cache, in one CUDA graph.

It is what a day's work reaches without an engine. It does less than a served step does: no
rotation of queries and keys, no paged cache, no sampling but argmax, and all sequences of one
length.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor
from torch.nn import functional

from loadtest.gpu.cost import ModelCost
from loadtest.gpu.job import Job
from loadtest.gpu.parts.steps import release_memory
from loadtest.gpu.timing import Timer
from penstock.model.config import ModelConfig


def run(job: Job) -> None:
    timer, cost = Timer(job.device, job.extent.repeats), ModelCost(job.config)
    with torch.inference_mode():
        weights = Weights(job.config, job.device)
        for context, batch in product(job.extent.contexts, sorted(job.extent.peer, reverse=True)):
            job.need(2.0)
            with job.attempt(f"batch {batch} at {context}", own=False):
                timing = timer(step(job.config, weights, batch, context, job.device))
                job.row(
                    what="peer",
                    model=job.model,
                    batch=batch,
                    context=context,
                    seconds=timing.seconds,
                    graph=timing.graph,
                    tokens=batch,
                    bytes=cost.decode_bytes(batch, context - 1),
                )
            release_memory()


class Weights:
    """Random ones of a Llama-like model, in bfloat16."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
        queries = config.num_heads * dim
        shapes = (
            (queries + 2 * config.num_kv_heads * dim, hidden),
            (hidden, queries),
            (2 * inner, hidden),
            (hidden, inner),
        )

        def drawn(*sizes: int) -> Tensor:
            made = torch.empty(sizes, dtype=torch.bfloat16, device=device)
            return made.normal_(0.0, sizes[-1] ** -0.5)

        self.layers = [tuple(drawn(*each) for each in shapes) for _ in range(config.num_layers)]
        self.head = drawn(config.vocab_size, hidden)
        self.norm = torch.ones(hidden, dtype=torch.bfloat16, device=device)


def step(
    config: ModelConfig, weights: Weights, batch: int, context: int, device: torch.device
) -> Callable[[], Tensor]:
    """A decode step whose new token is the last of `context`; the next tokens, [batch]."""
    heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
    hidden = torch.randn(batch, config.hidden_size, device=device).bfloat16()
    sizes = (config.num_layers, 2, batch, kv_heads, context, dim)
    cache = torch.empty(sizes, dtype=torch.bfloat16, device=device).normal_()

    def norm(x: Tensor) -> Tensor:
        return functional.rms_norm(x, (config.hidden_size,), weights.norm)

    def run() -> Tensor:
        x = hidden
        for (qkv, out, gate_up, down), (keys, values) in zip(weights.layers, cache, strict=True):
            rows = functional.linear(norm(x), qkv).view(batch, heads + 2 * kv_heads, 1, dim)
            query, key, value = rows.split((heads, kv_heads, kv_heads), 1)
            keys[:, :, -1:], values[:, :, -1:] = key, value
            mixed = functional.scaled_dot_product_attention(query, keys, values, enable_gqa=True)
            x = x + functional.linear(mixed.reshape(batch, heads * dim), out)
            gate, up = functional.linear(norm(x), gate_up).chunk(2, 1)
            x = x + functional.linear(functional.silu(gate) * up, down)
        return functional.linear(norm(x), weights.head).argmax(1)

    return run
