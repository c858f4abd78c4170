"""The facts of a model that is never loaded."""

from __future__ import annotations

from penstock.config.settings import EngineConfig
from penstock.model.config import GenerationDefaults, ModelConfig, PreparedModel, WeightFiles
from penstock.model.layer_spec import NormSpec, RopeSpec
from penstock.prepare.folder import FORMAT_VERSION
from penstock_engine.facts import EngineFacts
from penstock_engine.simulate.prompts import VOCAB

MAX_POSITION = 131_072
"""Longest prompt plus output where --max-model-len says nothing."""


def facts(config: EngineConfig) -> EngineFacts:
    """Facts of a model whose context is as long as anybody may want."""
    model = PreparedModel(
        format_version=FORMAT_VERSION,
        name="simulated",
        source="simulated",
        config=ModelConfig(
            architecture="llama",
            vocab_size=VOCAB,
            hidden_size=8,
            intermediate_size=16,
            num_layers=1,
            num_heads=1,
            num_kv_heads=1,
            head_dim=8,
            max_position=max(MAX_POSITION, config.model.max_model_len or 0),
            norm=NormSpec(),
            ropes=(RopeSpec(dims=8),),
        ),
        generation=GenerationDefaults(eos_token_ids=(2,)),
        weights=WeightFiles(format="safetensors", files=(), dtype="float32"),
        digest="0" * 64,
        has_chat_template=False,
    )
    return EngineFacts(
        config=config,
        model=model,
        folder="/",
        tokenizer=b"",
        template=b"",
        boot="simulated",
        created=0,
    )
