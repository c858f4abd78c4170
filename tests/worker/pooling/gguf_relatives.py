"""GGUF files of encoders whose architecture isn't BERT's, written as llama.cpp's converter does it:
its names, its keys, and what it fuses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import torch
from torch import Tensor

from testing.pooling_models import VOCAB

Writer = gguf.GGUFWriter
ARCH = gguf.MODEL_ARCH


def write_relative(
    path: Path,
    architecture: gguf.MODEL_ARCH,
    sizes: tuple[int, int, int, int],
    tensors: Mapping[str, Tensor],
    says: Callable[[Writer], object],
    *,
    kind: str = "F32",
    causal: bool = False,
    named: Mapping[int, str] = MappingProxyType({}),
) -> Path:
    """sizes: layers, hidden size, inner size, heads.  tensors: by the makers' names.  says: adds
    further keys.  kind: of matrices in layers.  named: texts of some tokens."""
    layers, hidden, inner, heads = sizes
    writer = Writer(path, gguf.MODEL_ARCH_NAMES[architecture])
    writer.add_block_count(layers)
    writer.add_context_length(80)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    if not causal:
        writer.add_causal_attention(False)
    writer.add_tokenizer_model("bert")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens = [*special, *(f"▁w{i}" for i in range(VOCAB - len(special)))]
    writer.add_token_list([named.get(at, token) for at, token in enumerate(tokens)])
    writer.add_token_types([3] * len(special) + [1] * (VOCAB - len(special)))
    writer.add_unk_token_id(1)
    writer.add_sep_token_id(3)
    says(writer)
    names = gguf.get_tensor_name_map(architecture, layers)
    for name, tensor in tensors.items():
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
        theirs = name if name.startswith("cls.") else theirs  # what the converter names itself
        assert theirs is not None, name
        values = tensor.detach().numpy()
        quantised = values.ndim >= 2 and "gate_inp" not in theirs and theirs.startswith("blk.")
        stored = gguf.GGMLQuantizationType[kind if quantised else "F32"]
        writer.add_tensor(theirs, gguf.quants.quantize(values, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def fused(
    state: Mapping[str, Tensor], renamed: Mapping[str, str], layers: int
) -> dict[str, Tensor]:
    """A state of transformers' module with queries, keys and values as one tensor, and other names.

    renamed: a part of a name -> what the makers call it."""
    found: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if ".self_attn." in name and "o_proj" not in name:
            continue
        for ours, theirs in renamed.items():
            name = name.replace(ours, theirs)
        found[name] = tensor
    for layer in range(layers):
        for end in ("weight", "bias"):
            at = [f"layers.{layer}.self_attn.{part}_proj.{end}" for part in "qkv"]
            if at[0] in state:
                whole = renamed["layers."] + f"{layer}.{renamed['qkv']}.{end}"
                found[whole] = torch.cat([state[name] for name in at])
    return found


NOMIC = {
    "embeddings.LayerNorm": "emb_ln",
    "layers.": "encoder.layers.",
    "self_attn.o_proj": "attn.out_proj",
    "post_attention_layernorm": "norm1",
    "post_mlp_layernorm": "norm2",
    "mlp.up_proj": "mlp.fc11",
    "mlp.gate_proj": "mlp.fc12",
    "mlp.down_proj": "mlp.fc2",
    "qkv": "attn.Wqkv",
}
"""What releases of Nomic BERT call modules of transformers' class."""
JINA_V3 = {
    **{name: NOMIC[name] for name in ("embeddings.LayerNorm", "layers.")},
    "self_attn.o_proj": "mixer.out_proj",
    "post_attention_layernorm": "norm1",
    "post_mlp_layernorm": "norm2",
    "qkv": "mixer.Wqkv",
}


def of_bert(writer: Writer, config: Any = None) -> None:
    writer.add_layer_norm_eps(1e-5 if config is None else config.layer_norm_eps)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
