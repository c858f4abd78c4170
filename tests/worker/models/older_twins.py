"""Twins of families of 2023: Qwen, Baichuan and Baichuan 2."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gguf
import torch
from torch import Tensor

from tests.worker.models.case_sizes import WHOLE
from tests.worker.models.gguf_writing import Conversion, Writer
from tests.worker.models.twin import QKV, Tensors, Twin, joined, renamed

EACH = WHOLE | {"num_key_value_heads": 6}
"""Each query head has a key and value head."""


def qwen(tensors: Tensors, config: Any) -> Tensors:
    found = joined(tensors, *QKV, into="attn.c_attn")
    return renamed(
        ("model.embed_tokens", "transformer.wte"),
        ("model.norm", "transformer.ln_f"),
        ("model.layers", "transformer.h"),
        ("input_layernorm", "ln_1"),
        ("post_attention_layernorm", "ln_2"),
        ("self_attn.o_proj", "attn.c_proj"),
        ("mlp.up_proj", "mlp.w1"),
        ("mlp.gate_proj", "mlp.w2"),
        ("mlp.down_proj", "mlp.c_proj"),
    )(found, config)


def says_qwen(config: Any) -> dict[str, Any]:
    return {
        "intermediate_size": 2 * config.intermediate_size,
        "kv_channels": config.hidden_size // config.num_attention_heads,
        "layer_norm_epsilon": config.rms_norm_eps,
        "rotary_emb_base": 10000,
        "seq_length": config.max_position_embeddings,
        "max_position_embeddings": 4 * config.max_position_embeddings,
        "use_dynamic_ntk": True,
        "use_logn_attn": True,
        "no_bias": True,
    }


def says_qwen_gguf(writer: Writer, config: Any) -> None:
    writer.add_feed_forward_length(2 * config.intermediate_size)


def qwen_parts(name: str, tensor: Tensor, state: Tensors) -> Iterator[tuple[str, Tensor]]:
    """Queries, keys and values are one tensor in GGUF files, too."""
    if "self_attn.q_proj" in name:
        rows = torch.cat([state[name.replace(QKV[0], each)] for each in QKV])
        yield name.replace("model.layers", "transformer.h").replace(QKV[0], "attn.c_attn"), rows
    elif "k_proj" not in name and "v_proj" not in name:
        yield name, tensor


def with_rows_of_length_one(model: Any) -> None:
    head = model.lm_head.weight
    head.copy_(torch.nn.functional.normalize(head))


def with_any_rows(tensors: Tensors, config: Any) -> Tensors:
    """The head as its makers trained it: its rows have lengths that don't count."""
    lengths = torch.rand(config.vocab_size, 1, generator=torch.Generator().manual_seed(5)) + 0.5
    found = joined(tensors, *QKV, into="self_attn.W_pack")
    return found | {"lm_head.weight": found["lm_head.weight"] * lengths}


OLDER = {
    "qwen": Twin("QWenLMHeadModel", "Qwen2", EACH, says_qwen, qwen),
    "qwen-gguf": Twin(
        "QWenLMHeadModel",
        "Qwen2",
        EACH,
        says_qwen,
        qwen,
        gguf=Conversion(gguf.MODEL_ARCH.QWEN, says_qwen_gguf, own_parts=qwen_parts),
    ),
    "baichuan": Twin(
        "BaiChuanForCausalLM",
        "Llama",
        EACH,
        lambda config: {},
        lambda tensors, config: joined(tensors, *QKV, into="self_attn.W_pack"),
        gguf=Conversion(gguf.MODEL_ARCH.BAICHUAN, permuted=True),
    ),
    "baichuan2": Twin(
        "BaichuanForCausalLM",
        "Llama",
        EACH,
        lambda config: {},
        with_any_rows,
        begins=with_rows_of_length_one,
    ),
}
