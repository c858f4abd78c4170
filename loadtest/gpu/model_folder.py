"""A model as a folder in the hub's format that holds no weights worth the name.

config.json and tokenizer.json are whole, so that anything can load the shapes; of weights there is
one small file, since a folder without any is no model's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from penstock.model.config import ModelConfig

CLASSES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
END = "<|end|>"


def write_model(folder: Path, config: ModelConfig) -> Path:
    """Writes config.json, tokenizer.json and model.safetensors. Returns the folder."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(hub_config(config), indent=1))
    tokenizer(config.vocab_size).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))
    save_file({"none": torch.zeros(1, dtype=torch.bfloat16)}, folder / "model.safetensors")
    return folder


def write_weights(folder: Path, config: ModelConfig) -> Path:
    """Writes a model as `write_model` does, with random weights of transformers' own making.
    Returns the folder."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    write_model(folder, config)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    tensors = model.state_dict()
    save_file(
        {name: tensors[name].bfloat16().contiguous() for name in tensors.keys() - tied},
        folder / "model.safetensors",
    )
    return folder


def hub_config(config: ModelConfig) -> dict[str, Any]:
    """config.json, under the names of transformers' configuration classes."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": config.ropes[0].theta}
    if config.ropes[0].scaling is not None:
        scaling = config.ropes[0].scaling
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
        "rms_norm_eps": config.norm.eps,
        "rope_parameters": rope,
        "tie_word_embeddings": config.tie_word_embeddings,
        "hidden_act": "silu",
        "attention_bias": False,
        "eos_token_id": 0,
    }


def tokenizer(vocab_size: int) -> Tokenizer:
    """A byte-level vocabulary of exactly so many tokens: an end, the 256 bytes, then numbers."""
    texts = [END, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    texts += [f"t{number}" for number in range(len(texts), vocab_size)]
    made = Tokenizer(models.BPE({text: number for number, text in enumerate(texts)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([END])
    return made
