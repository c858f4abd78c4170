"""What a token takes at long contexts, where an index chooses the tokens that attention reads.

    python -m loadtest.sparse_attention                     # some three minutes
    python -m loadtest.sparse_attention --longest 4096 --repeated 3

A model with DeepSeek V3.2's heads but fewer of them and random weights, in bfloat16, on the CPU
kernels, beside the same one without an index. The cache is filled with random numbers instead of a
prompt's: chosen tokens then lie far apart, which is the worst case. Steps of the two alternate.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from statistics import median
from unittest.mock import patch

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # As the worker has it.

import numpy as np
import torch
from msgspec.structs import replace

from loadtest.report import Document, Flags, Measurement, machine_line, markdown_table, say
from loadtest.report.table import sections
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.kv_layout import blocks_needed
from penstock.model.prepared_model import WeightFiles
from penstock.prepare.hub_config import read_config
from penstock.process.machine import usable_cores
from penstock_worker.forward.cpu import backend as cpu
from penstock_worker.forward.interface import Batch, Forward
from tests.worker.cpu_model import CPUModel
from tests.worker.random_weights import RandomWeights

BLOCK = 16
SHORTEST = 1024
CHUNK = 32
"""Tokens of a prompt that are computed at a time."""
SETTINGS = {
    "architectures": ["DeepseekV32ForCausalLM"],
    "model_type": "deepseek_v32",
    "vocab_size": 1024,
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "num_hidden_layers": 4,
    "first_k_dense_replace": 4,
    "moe_intermediate_size": 64,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "kv_lora_rank": 512,
    "q_lora_rank": 768,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "index_n_heads": 8,
    "index_head_dim": 128,
    "index_topk": 2048,
    "max_position_embeddings": 163840,
    "rope_theta": 10000,
}
"""V3.2 has 128 heads and 64 of the index."""
HEAD = """# Attention that reads chosen tokens

Milliseconds for a token in {layers} layers, by `python -m loadtest.sparse_attention`: {heads} heads
over latents of {latent} numbers, without an index ("dense"), and with one of {index} heads that
chooses {most} tokens. bfloat16, one sequence, {threads:g} threads. Decodes are medians of
{repeated} steps; prompts are one step of {chunk} tokens. The cache holds random numbers, so that
chosen tokens lie far apart.

A token takes {dense:,} bytes of the KV cache in all layers, and {sparse:,} with the keys of the
index ({more:.0%} more)."""


@dataclass(frozen=True)
class Served:
    """A model of which steps are measured."""

    model: CPUModel
    forward: Forward

    @staticmethod
    def of(config: ModelConfig, longest: int, threads: int) -> Served:
        files = WeightFiles(format="safetensors", files=(), dtype="bfloat16")
        model = CPUModel(config, files, "bfloat16", positions=longest)
        blocks = blocks_needed(model.recipe().kv_groups, longest, BLOCK, CHUNK)
        with patch.object(cpu, "open_weights", lambda *_, **__: RandomWeights()):
            forward = model.forward(block_size=BLOCK, num_blocks=blocks, threads=threads)
        for each in forward.kv_blocks():
            _fill(each)
        return Served(model, forward)

    @property
    def bytes_per_token(self) -> int:
        return self.model.recipe().block_bytes // BLOCK

    def step(self, context: int, count: int) -> float:
        """Seconds of the step that computes the last `count` tokens of so many."""
        tokens = np.arange(count) % SETTINGS["vocab_size"]
        first, *more = self._tables(context)
        start = np.array([context - count])
        batch = Batch(tokens, first, start, np.array([count]), tuple(more))
        begun = time.perf_counter()
        with torch.inference_mode():
            self.forward.logits(batch, np.array([count - 1]))
        return time.perf_counter() - begun

    def _tables(self, context: int) -> list[list[np.ndarray]]:
        """Block tables, by KV group. What a group forgets has been overwritten by what came
        later."""
        whole, taken, tables = -(-context // BLOCK), 0, []
        for group in self.model.recipe().kv_groups:
            own = blocks_needed([group], context, BLOCK, CHUNK)
            tables.append([taken + np.arange(whole) % own])
            taken += own
        return tables


def _fill(blocks: np.ndarray) -> None:
    """blocks: [blocks, bytes] uint8."""
    random = torch.randn(1 << 20, generator=torch.Generator().manual_seed(1)).bfloat16()
    numbers = random.view(torch.uint8).numpy()
    for at, block in enumerate(blocks):
        first = 2 * (1009 * at % (len(random) - len(block)))
        block[:] = numbers[first : first + len(block)]


def measure(options: Flags) -> Document:
    config, threads = read_config(Fields(SETTINGS, "config.json")), usable_cores()
    kinds = {"dense": _without_index(config), "sparse": config}
    served = {name: Served.of(each, options.longest, int(threads)) for name, each in kinds.items()}
    rows = []
    for context in contexts(options.longest):
        rows.append({"context": context, **compared(served, context, options.repeated)})
        say(f"{context} tokens: {rows[-1]}")
    return {
        "figures": {
            "threads": threads,
            "repeated": options.repeated,
            "bytes_per_token": {name: each.bytes_per_token for name, each in served.items()},
            "rows": rows,
        }
    }


def contexts(longest: int) -> list[int]:
    """Each twice the one before."""
    found = [SHORTEST]
    while 2 * found[-1] <= longest:
        found.append(2 * found[-1])
    return found


def _without_index(config: ModelConfig) -> ModelConfig:
    layers = (
        replace(layer, attention=replace(layer.attention, index=None)) for layer in config.layers
    )
    return replace(config, layers=tuple(layers))


def compared(served: dict[str, Served], context: int, repeated: int) -> dict[str, float]:
    """Milliseconds of a decode, and of each token of a chunk."""
    found: dict[str, list[float]] = {}
    for number in range(repeated + 1):
        for name, each in served.items():
            seconds = each.step(context, 1)
            if number:  # The first step meets cold caches.
                found.setdefault(f"{name}_decode", []).append(1e3 * seconds)
    for name, each in served.items():
        found[f"{name}_chunk"] = [1e3 * each.step(context, CHUNK) / CHUNK]
    return {name: median(times) for name, times in found.items()}


def markdown(document: Document) -> str:
    figures = document["figures"]
    takes = figures["bytes_per_token"]
    head = HEAD.format(
        layers=SETTINGS["num_hidden_layers"],
        heads=SETTINGS["num_attention_heads"],
        latent=SETTINGS["kv_lora_rank"],
        index=SETTINGS["index_n_heads"],
        most=SETTINGS["index_topk"],
        threads=figures["threads"],
        repeated=figures["repeated"],
        chunk=CHUNK,
        dense=takes["dense"],
        sparse=takes["sparse"],
        more=takes["sparse"] / takes["dense"] - 1,
    )
    kinds = ("dense_decode", "sparse_decode", "dense_chunk", "sparse_chunk")
    rows = [
        [
            f"{row['context']:,}",
            *(f"{row[kind]:.2f}" for kind in kinds[:2]),
            f"{row['dense_decode'] / row['sparse_decode']:.2f} ×",
            *(f"{row[kind]:.2f}" for kind in kinds[2:]),
            f"{row['dense_chunk'] / row['sparse_chunk']:.2f} ×",
        ]
        for row in figures["rows"]
    ]
    columns = [
        "tokens before",
        "decode, dense",
        "sparse",
        "gain",
        "prompt, dense",
        "sparse",
        "gain",
    ]
    return sections([head, markdown_table(columns, rows), machine_line(document)])


COMMAND = Measurement(
    "sparse_attention",
    __doc__,
    measure,
    markdown,
    {
        "--longest": (131072, "context, tokens"),
        "--repeated": (7, "decodes of each context"),
    },
)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
