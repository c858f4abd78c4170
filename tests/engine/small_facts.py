"""Facts of a model so small that every limit is met."""

from __future__ import annotations

from typing import Any

from penstock.config.settings import (
    CacheSettings,
    EngineConfig,
    GrammarSettings,
    LimitSettings,
    LoraSettings,
    ModelSettings,
    ParallelSettings,
    SchedulerSettings,
)
from penstock.model.media_facts import MediaFacts
from penstock.model.prepared_model import GenerationDefaults, PreparedModel, WeightFiles
from penstock.prepare.folder import FORMAT_VERSION
from penstock_engine.facts import EngineFacts
from testing.model_configs import llama_config
from tests.engine.fake_model import EOS, VOCAB


def facts(
    *,
    max_model_len: int = 64,
    block_size: int = 4,
    num_kv_blocks: int | None = None,
    prefix_caching: bool = True,
    max_grammars: int = 8,
    tensor: int = 1,
    pipeline: int = 1,
    limits: LimitSettings | None = None,
    encoder_cache: bool = True,
    media_load_mib: int = 1,
    max_loras: int = 0,
    session_share: float = 0.5,
    kv_endpoint: str | None = None,
    media: bool = True,
    **scheduler: Any,
) -> EngineFacts:
    """A small model's facts. scheduler: fields of SchedulerSettings."""
    model = PreparedModel(
        format_version=FORMAT_VERSION,
        name="tiny",
        source="tiny",
        config=llama_config(
            architecture="llama",
            vocab_size=VOCAB,
            hidden_size=8,
            intermediate_size=16,
            num_layers=1,
            num_heads=1,
            num_kv_heads=1,
            head_dim=8,
            max_position=max_model_len,
            rms_norm_eps=1e-5,
            rope_theta=10000.0,
        ),
        generation=GenerationDefaults(eos_token_ids=EOS),
        weights=WeightFiles(format="safetensors", files=("/nowhere",), dtype="float32"),
        digest="0" * 64,
        has_chat_template=False,
        media=MediaFacts(kinds={}) if media else None,
    )
    settings: dict[str, Any] = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "max_steps_in_flight": 1,
        **scheduler,
    }
    config = EngineConfig(
        model=ModelSettings(model="tiny"),
        cache=CacheSettings(
            kv_block_size=block_size,
            num_kv_blocks=num_kv_blocks,
            enable_prefix_caching=prefix_caching,
            enable_encoder_cache=encoder_cache,
            media_load_mib=media_load_mib,
            session_kv_share=session_share,
            kv_endpoint=kv_endpoint,
        ),
        scheduler=SchedulerSettings(**settings),
        limits=limits or LimitSettings(),
        grammar=GrammarSettings(max_grammars=max_grammars),
        lora=LoraSettings(enable_lora=max_loras > 0, max_loras=max_loras or 1),
        parallel=ParallelSettings(tensor_parallel_size=tensor, pipeline_parallel_size=pipeline),
    )
    return EngineFacts(
        config=config, model=model, folder="/m", tokenizer=b"{}", template=b"", boot="b", created=1
    )
