"""A model on the CPU kernels, as the worker loads it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from penstock.model.config import ModelConfig
from penstock.model.kv_layout import kv_layout
from penstock.model.prepared_model import GenerationDefaults, PreparedModel, WeightFiles
from penstock.prepare.folder import FORMAT_VERSION
from penstock.protocol.to_worker import Setup
from penstock_worker.forward.backends import choose
from penstock_worker.forward.interface import Forward, Recipe

POSITIONS = 2048


@dataclass(frozen=True)
class CPUModel:
    """dtype, kv_cache_dtype, quantization, matmul_precision: as the flags have them; dtype `auto`
    keeps the file's own format.  backend: `cpu`, or another to compare with."""

    config: ModelConfig
    weights: WeightFiles
    dtype: str
    kv_cache_dtype: str = "auto"
    quantization: str = "none"
    matmul_precision: str = "medium"
    backend: str = "cpu"
    positions: int = POSITIONS
    max_loras: int = 0
    max_lora_rank: int = 0
    lora_whole_matrices: bool = False
    lora_experts: bool = False
    expert_parallel: bool = False

    @property
    def groups(self) -> int:
        """Block tables of a sequence."""
        return len(kv_layout(self.config, self.positions).groups)

    def forward(self, *, block_size: int, num_blocks: int, threads: int) -> Forward:
        setup = self.setup(block_size=block_size, num_blocks=num_blocks, threads=threads)
        with torch.inference_mode():
            return choose(self.prepared(), setup, threads).build()(num_blocks)

    def recipe(self) -> Recipe:
        return choose(self.prepared(), self.setup(), 1)

    def prepared(self) -> PreparedModel:
        return PreparedModel(
            format_version=FORMAT_VERSION,
            name="test",
            source="test",
            config=self.config,
            generation=GenerationDefaults(),
            weights=self.weights,
            digest="",
            has_chat_template=False,
        )

    def setup(self, *, block_size: int = 16, num_blocks: int = 64, threads: int = 1) -> Setup:
        return Setup(
            version=1,
            model_dir="",
            dtype=self.dtype,
            attention_backend=self.backend,
            threads=threads,
            block_size=block_size,
            num_kv_blocks=num_blocks,
            kv_memory_fraction=0.5,
            max_num_seqs=64,
            max_num_batched_tokens=2048,
            max_model_len=self.positions,
            kv_cache_dtype=self.kv_cache_dtype,
            quantization=self.quantization,
            matmul_precision=self.matmul_precision,
            max_loras=self.max_loras,
            max_lora_rank=self.max_lora_rank,
            lora_whole_matrices=self.lora_whole_matrices,
            lora_experts=self.lora_experts,
            expert_parallel=self.expert_parallel,
        )
