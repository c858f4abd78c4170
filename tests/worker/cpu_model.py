"""A model on the CPU kernels, as the worker loads it."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.model_config import GenerationDefaults, ModelConfig, PreparedModel, WeightFiles
from penstock.protocol.to_worker import Setup
from penstock_worker.forward import cpu
from penstock_worker.forward.interface import Forward

POSITIONS = 2048


@dataclass(frozen=True)
class CPUModel:
    """dtype: as --dtype has it; `auto` keeps the file's own format."""

    config: ModelConfig
    weights: WeightFiles
    dtype: str

    def forward(self, *, block_size: int, num_blocks: int, threads: int) -> Forward:
        prepared = PreparedModel(
            format_version=1,
            name="test",
            source="test",
            config=self.config,
            generation=GenerationDefaults(),
            weights=self.weights,
            digest="",
            has_chat_template=False,
        )
        setup = Setup(
            version=1,
            model_dir="",
            dtype=self.dtype,
            attention_backend="cpu",
            threads=threads,
            block_size=block_size,
            num_kv_blocks=num_blocks,
            kv_memory_fraction=0.5,
            max_num_seqs=64,
            max_num_batched_tokens=2048,
            max_model_len=POSITIONS,
        )
        return cpu.recipe(prepared, setup, threads).build()(num_blocks)
