"""Prepared folders of models that are served, and of ones that draft for them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.model.config import ModelConfig
from penstock.model.prepared_model import GenerationDefaults, PreparedModel
from penstock.model.speculation import SpeculativeConfig
from penstock.prepare.folder import FORMAT_VERSION, MANIFEST, TOKENIZER
from penstock.protocol.to_worker import Setup
from testing.model_configs import llama_config
from tests.worker.checkpoints import tiny_files

SERVED = llama_config(
    vocab_size=160,
    hidden_size=64,
    intermediate_size=96,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    max_position=512,
)


def write_folder(
    folder: Path,
    config: ModelConfig = SERVED,
    seed: int = 0,
    *,
    contents: str = "the same",
    tokenizer: bytes = b"",
) -> Path:
    """Random weights; `contents`: the digest of the tokenizer, by what the manifest says; empty:
    it doesn't say."""
    folder.mkdir()
    manifest = PreparedModel(
        format_version=FORMAT_VERSION,
        name=folder.name,
        source=folder.name,
        config=config,
        generation=GenerationDefaults(),
        weights=tiny_files(folder, config, seed),
        digest=f"{folder.name} {seed}",
        has_chat_template=False,
        contents={TOKENIZER: contents} if contents else {},
    )
    (folder / MANIFEST).write_bytes(msgspec.json.encode(manifest))
    (folder / TOKENIZER).write_bytes(tokenizer)
    return folder


def draft_setup(served: Path, draft: Path, *, backend: str = "cpu", drafts: int = 4) -> Setup:
    return Setup(
        version=1,
        model_dir=str(served),
        dtype="float32",
        attention_backend=backend,
        threads=1,
        block_size=16,
        num_kv_blocks=80,
        kv_memory_fraction=0.5,
        max_num_seqs=12,
        max_num_batched_tokens=256,
        max_model_len=300,
        speculation=SpeculativeConfig(
            method="draft_model", model=str(draft), num_speculative_tokens=drafts
        ),
    )
