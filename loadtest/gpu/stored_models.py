"""Models of known shapes as whole files with random weights, in formats that `load_format dummy`
doesn't know: GGUF in Q4_K_M, and a mixture of experts in FP8 blocks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors.torch import save_file
from torch import Tensor

from loadtest.gpu.model_folder import END, tokenizer
from loadtest.gpu.shapes import Mixture
from loadtest.peers.random_gguf import Shape, write

BLOCK = 128
"""Weights that share a scale, along both sides of a matrix."""
SPREAD = 0.02


def write_shapes(mixture: Mixture, folder: Path) -> Path:
    """Writes the folder without weights, for `load_format dummy`. Returns it."""
    _write_folder(folder, mixture, mixture.hub_config)
    save_file({"none": torch.zeros(1)}, folder / "model.safetensors")
    return folder


def write_fp8(mixture: Mixture, folder: Path) -> Path:
    """Writes the folder with weights in FP8, e4m3, each block of 128 x 128 with a scale.
    Returns it."""
    quantised = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [BLOCK, BLOCK],
    }
    _write_folder(folder, mixture, mixture.hub_config | {"quantization_config": quantised})
    save_file(_fp8_tensors(mixture), folder / "model.safetensors")
    return folder


def _write_folder(folder: Path, mixture: Mixture, config: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    tokenizer(mixture.vocab).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))


def _fp8_tensors(mixture: Mixture) -> dict[str, Tensor]:
    """A shape's matrices have the same weights: their values make no difference to a step's
    time, and drawing them takes longer than all else."""
    drawn: dict[tuple[int, int], Tensor] = {}
    tensors = {}
    for layer in range(mixture.layers):
        at = f"model.layers.{layer}"
        for name, (outputs, inputs) in mixture.matrices.items():
            if (outputs, inputs) not in drawn:
                drawn[outputs, inputs] = torch.randn(outputs, inputs).to(torch.float8_e4m3fn)
            tensors[f"{at}.{name}.weight"] = drawn[outputs, inputs].clone()
            blocks = -(-outputs // BLOCK), -(-inputs // BLOCK)
            tensors[f"{at}.{name}.weight_scale_inv"] = torch.full(blocks, SPREAD)
        tensors[f"{at}.mlp.gate.weight"] = _normal(mixture.experts, mixture.hidden)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}.{name}.weight"] = _ones(mixture.hidden)
        for name in ("q_norm", "k_norm"):
            tensors[f"{at}.self_attn.{name}.weight"] = _ones(mixture.head_size)
    tensors["model.embed_tokens.weight"] = _normal(mixture.vocab, mixture.hidden)
    tensors["lm_head.weight"] = _normal(mixture.vocab, mixture.hidden)
    tensors["model.norm.weight"] = _ones(mixture.hidden)
    return tensors


def _normal(*sizes: int) -> Tensor:
    return torch.empty(sizes, dtype=torch.bfloat16).normal_(0.0, SPREAD)


def _ones(size: int) -> Tensor:
    return torch.ones(size, dtype=torch.bfloat16)


def write_gguf(path: Path, shape: Shape, vocab: int) -> Path:
    """Writes a GGUF file of that shape in Q4_K_M, with a vocabulary of so many tokens. Returns
    it."""
    words = path.with_suffix(".words.gguf")
    writer = gguf.GGUFWriter(words, shape.architecture)
    made = tokenizer(vocab).get_vocab()
    letters = sorted(made, key=lambda text: made[text])
    # A list of merges mustn't be empty.
    letters[-1] = f"{letters[1]}{letters[2]}"
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(letters)
    writer.add_token_types([3, *[1] * (vocab - 1)])
    writer.add_token_merges([f"{letters[1]} {letters[2]}"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    write(path, shape, words, "Q4_K_M")
    return path
