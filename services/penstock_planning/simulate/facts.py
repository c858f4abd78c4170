"""What a simulated engine core knows of its model."""

from __future__ import annotations

import msgspec

from penstock.config.settings import EngineConfig, ParallelSettings
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import NormSpec
from penstock.model.prepared_model import GenerationDefaults, PreparedModel, WeightFiles
from penstock.model.rope_spec import RopeSpec
from penstock.prepare.folder import FORMAT_VERSION
from penstock_engine.facts import EngineFacts
from penstock_planning.simulate.trace import VOCAB

BEAT_INTERVAL = 60.0
"""Seconds between reports of the core's state, which aren't read here."""

MAX_POSITION = 131_072
"""Longest prompt plus output where --max-model-len says nothing."""


def engine_facts(config: EngineConfig) -> EngineFacts:
    """Facts of an engine core that is simulated with these settings."""
    transport = msgspec.structs.replace(config.transport, beat_interval=BEAT_INTERVAL)
    # The ranks of one stage take the time that is set, as one worker does.
    alone = ParallelSettings()
    lora = msgspec.structs.replace(config.lora, enable_lora=True)
    return facts(msgspec.structs.replace(config, transport=transport, parallel=alone, lora=lora))


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
