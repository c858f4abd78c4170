"""A model as a folder in the hub's format that holds no weights worth the name.

config.json and tokenizer.json are whole, so that anything can load the shapes; of weights there is
one small file, since a folder without any is no model's.  `load_format dummy` doesn't read it.
For a trial of a tiny shape it holds real (random) weights.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers.pre_tokenizers import ByteLevel

from penstock.model_config import ModelConfig

CLASSES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def write_model(folder: Path, config: ModelConfig, *, weights: bool = False) -> Path:
    """Writes config.json, tokenizer.json and model.safetensors. Returns the folder."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(hub_config(config), indent=1))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(config.vocab_size)))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))
    tensors = {"none": torch.zeros(1, dtype=torch.bfloat16)}
    if weights:
        generator = torch.Generator().manual_seed(0)
        tensors = {
            name: (torch.randn(shape, generator=generator) * 0.05 + (len(shape) == 1)).bfloat16()
            for name, shape in tensor_shapes(config).items()
        }
    save_file(tensors, folder / "model.safetensors")
    return folder


def hub_config(config: ModelConfig) -> dict[str, Any]:
    """config.json, under the names of transformers' configuration classes."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rope_theta}
    if config.rope_scaling is not None:
        scaling = config.rope_scaling
        rope |= {
            "rope_type": scaling.kind,
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_max_position,
        }
    return {
        "architectures": [CLASSES[config.architecture]],
        "model_type": config.architecture,
        "dtype": "bfloat16",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_parameters": rope,
        "tie_word_embeddings": config.tie_word_embeddings,
        "hidden_act": "silu",
        "attention_bias": False,
        "eos_token_id": 0,
    }


END = "<|end|>"


def tokenizer(vocab_size: int) -> dict[str, Any]:
    """A byte-level vocabulary of exactly so many tokens: an end, the 256 bytes, then numbers."""
    texts = [END, *sorted(ByteLevel.alphabet())]
    texts += [f"t{number}" for number in range(len(texts), vocab_size)]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": 0,
                "content": END,
                "special": True,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
            }
        ],
        "normalizer": None,
        "pre_tokenizer": {**level, "use_regex": True},
        "post_processor": None,
        "decoder": {**level, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {text: number for number, text in enumerate(texts)},
            "merges": [],
        },
    }


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Under the hub's names."""
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    queries, keys = config.num_heads * dim, config.num_kv_heads * dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for number in range(config.num_layers):
        at = f"model.layers.{number}"
        shapes |= {
            f"{at}.self_attn.q_proj.weight": (queries, hidden),
            f"{at}.self_attn.k_proj.weight": (keys, hidden),
            f"{at}.self_attn.v_proj.weight": (keys, hidden),
            f"{at}.self_attn.o_proj.weight": (hidden, queries),
            f"{at}.mlp.gate_proj.weight": (inner, hidden),
            f"{at}.mlp.up_proj.weight": (inner, hidden),
            f"{at}.mlp.down_proj.weight": (hidden, inner),
            f"{at}.input_layernorm.weight": (hidden,),
            f"{at}.post_attention_layernorm.weight": (hidden,),
        }
        if config.qk_norm:
            shapes |= {f"{at}.self_attn.{part}_norm.weight": (dim,) for part in "qk"}
    shapes["model.norm.weight"] = (hidden,)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes
