"""Models that transformers has no class of, and that one of its classes computes under other names:
their files are made of what it saves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gguf
import torch
from torch import Tensor

from tests.worker.models import gguf_keys as keys
from tests.worker.models import step_files as step
from tests.worker.models.case_sizes import GROUPED, LLAMA3_ROPE, WHOLE
from tests.worker.models.expert_cases import ERNIE_EXPERTS
from tests.worker.models.gguf_writing import Conversion, Writer, adjacent, separated
from tests.worker.models.older_twins import OLDER
from tests.worker.models.twin import QKV, Tensors, Twin, joined, renamed

ARCH = gguf.MODEL_ARCH


def with_drafts(tensors: Tensors, config: Any) -> Tensors:
    return tensors | {"model.mtp_layers.0.input_proj.weight": torch.zeros(4, 8)}


def internlm2(tensors: Tensors, config: Any) -> Tensors:
    found, dim, groups = dict(tensors), config.head_dim, config.num_key_value_heads
    for name in tensors:
        if QKV[0] not in name:
            continue
        query, key, value = (found.pop(name.replace(QKV[0], each)) for each in QKV)
        by_head = [
            rows.unflatten(0, (groups, rows.shape[0] // groups)) for rows in (query, key, value)
        ]
        assert by_head[1].shape[1] == dim
        found[name.replace(QKV[0], "attention.wqkv")] = torch.cat(by_head, 1).flatten(0, 1)
    return renamed(
        ("embed_tokens", "tok_embeddings"),
        ("lm_head", "output"),
        ("input_layernorm", "attention_norm"),
        ("self_attn.o_proj", "attention.wo"),
        ("post_attention_layernorm", "ffn_norm"),
        ("mlp.gate_proj", "feed_forward.w1"),
        ("mlp.up_proj", "feed_forward.w3"),
        ("mlp.down_proj", "feed_forward.w2"),
    )(found, config)


def chatglm(tensors: Tensors, config: Any) -> Tensors:
    found = joined(tensors, *QKV, into="self_attention.query_key_value")
    return renamed(
        ("model.embed_tokens", "transformer.embedding.word_embeddings"),
        ("lm_head", "transformer.output_layer"),
        ("model.norm", "transformer.encoder.final_layernorm"),
        ("model.layers", "transformer.encoder.layers"),
        ("self_attn.o_proj", "self_attention.dense"),
        ("mlp.gate_up_proj", "mlp.dense_h_to_4h"),
        ("mlp.down_proj", "mlp.dense_4h_to_h"),
    )(found, config) | {"transformer.rotary_pos_emb.inv_freq": torch.zeros(4)}


def bailing(tensors: Tensors, config: Any) -> Tensors:
    found = joined(tensors, *QKV, into="attention.query_key_value")
    return renamed(
        ("embed_tokens", "word_embeddings"),
        ("self_attn.o_proj", "attention.dense"),
        ("self_attn.q_norm", "attention.query_layernorm"),
        ("self_attn.k_norm", "attention.key_layernorm"),
        ("e_score_correction_bias", "expert_bias"),
    )(found, config)


def apart(rows: Tensor, heads: int) -> Tensor:
    """The opposite of `adjacent`."""
    return rows.view(heads, -1, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def of_ernie(tensors: Tensors, config: Any) -> Tensors:
    """ERNIE's tensors without corrections, with pairs that are half a head apart."""
    heads = {"q_proj.": config.num_attention_heads, "k_proj.": config.num_key_value_heads}
    return {
        name: next((apart(tensor, n) for part, n in heads.items() if part in name), tensor)
        for name, tensor in tensors.items()
        if "moe_statics" not in name
    }


def uncorrected(model: Any) -> None:
    for name, parameter in model.named_parameters():
        if "moe_statics" in name:
            parameter.data.zero_()


def says_bailing(config: Any) -> dict[str, Any]:
    return {
        "num_experts": getattr(config, "n_routed_experts", 0) or config.moe_num_experts,
        "num_shared_experts": getattr(config, "n_shared_experts", 0)
        or config.moe_num_shared_experts,
        "norm_head": False,
        "use_qkv_bias": False,
        "use_bias": False,
    }


# DeciLM's layers: each KV heads, and inner columns.

BLOCKS = ((2, 512), (0, 256), (1, 512), (2, 0))


def thinned(model: Any) -> None:
    """Makes Llama's layers compute what smaller ones would."""
    for layer, (kv_heads, inner) in zip(model.model.layers, BLOCKS, strict=True):
        attention = layer.self_attn
        layer.mlp.down_proj.weight.data[:, inner:] = 0
        if not kv_heads:
            attention.o_proj.weight.data.zero_()
        if kv_heads == 1:
            for each in (attention.k_proj, attention.v_proj):
                each.weight.data[16:] = each.weight.data[:16]


def decilm(tensors: Tensors, config: Any) -> Tensors:
    found = {}
    for name, tensor in tensors.items():
        kv_heads, inner = BLOCKS[int(name.split(".")[2])] if ".layers." in name else (2, 512)
        attends, feeds = "self_attn" in name or "input_layer" in name, "mlp" in name
        if (attends and not kv_heads) or ((feeds or "post_att" in name) and not inner):
            continue
        if "k_proj" in name or "v_proj" in name:
            tensor = tensor[: 16 * kv_heads]
        if feeds:
            tensor = tensor[:, :inner] if "down_proj" in name else tensor[:inner]
        found[name] = tensor.contiguous()
    return found


def says_decilm(config: Any) -> dict[str, Any]:
    def attention(kv_heads: int) -> dict[str, Any]:
        group = config.num_attention_heads // kv_heads if kv_heads else None
        return {"n_heads_in_group": group, "no_op": not kv_heads, "replace_with_linear": False}

    def feed_forward(inner: int) -> dict[str, Any]:
        factor = 1.5 * (inner - 16) / config.hidden_size if inner else None
        return {"ffn_mult": factor, "no_op": not inner, "replace_with_linear": False}

    blocks = [{"attention": attention(each), "ffn": feed_forward(n)} for each, n in BLOCKS]
    return {"block_configs": blocks, "num_key_value_heads": None, "intermediate_size": None}


def says_deci_gguf(writer: Writer, config: Any) -> None:
    writer.add_head_count([config.num_attention_heads if each else 0 for each, _ in BLOCKS])
    writer.add_head_count_kv([each for each, _ in BLOCKS])
    writer.add_feed_forward_length([inner for _, inner in BLOCKS])


def deci_parts(name: str, tensor: Tensor, state: Tensors) -> Iterator[tuple[str, Tensor]]:
    heads = tensor.shape[0] // 16
    turns = "q_proj" in name or "k_proj" in name
    yield from separated(name, adjacent(tensor, heads) if turns else tensor)


def fused_parts(name: str, tensor: Tensor, state: Tensors) -> Iterator[tuple[str, Tensor]]:
    """Ling 2's queries, keys and values are one tensor in GGUF files, too."""
    if "q_proj" in name:
        rows = torch.cat([state[name.replace("q_proj", each.split(".")[1])] for each in QKV])
        yield name.replace("self_attn.q_proj", "attention.query_key_value"), rows
    elif "k_proj" not in name and "v_proj" not in name:
        theirs = name.replace("gate.e_score_correction_bias", "gate.expert_bias.bias")
        yield from separated(theirs, tensor)


def says_ling2_gguf(writer: Writer, config: Any) -> None:
    keys.glm45(writer, config)
    writer.add_expert_group_count(config.n_group)
    writer.add_expert_group_used_count(config.topk_group)


def says_ling_gguf(writer: Writer, config: Any) -> None:
    writer.add_expert_count(config.moe_num_experts)
    writer.add_expert_used_count(config.moe_k)
    writer.add_leading_dense_block_count(config.moe_layer_start_index)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_weights_scale(1.0)
    writer.add_expert_shared_count(config.moe_num_shared_experts)
    writer.add_expert_weights_norm(True)


def says_minicpm_gguf(writer: Writer, config: Any) -> None:
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_residual_scale(config.residual_multiplier)
    writer.add_logit_scale(config.logits_scaling)


# Nanbeige's layers, which are computed twice. Its twin has them twice.

LOOPED = 3


def looped(model: Any) -> None:
    """Makes the second half of Llama's layers the first one's, and norms what it reads."""
    layers = model.model.layers
    for layer, again in zip(layers[:LOOPED], layers[LOOPED:], strict=True):
        again.load_state_dict(layer.state_dict())
    layers[LOOPED].register_forward_pre_hook(lambda _, args: (model.model.norm(args[0]), *args[1:]))


def once(tensors: Tensors, config: Any) -> Tensors:
    def kept(name: str) -> bool:
        return ".layers." not in name or int(name.split(".")[2]) < LOOPED

    return {name: each for name, each in tensors.items() if kept(name)}


def says_nanbeige_gguf(writer: Writer, config: Any) -> None:
    # The gguf package knows no such keys.
    writer.add_uint32("nanbeige.num_loops", 2)
    writer.add_bool("nanbeige.skip_loop_final_norm", False)
    writer.add_uint32("nanbeige.attention.head_dim", config.head_dim)
    writer.kv_data[0]["nanbeige.block_count"].value = LOOPED


GROUPS = {
    "n_routed_experts": 12,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
    "use_qk_norm": True,
}
TWINS = {
    "mimo": Twin(
        "MiMoForCausalLM",
        "Qwen2",
        WHOLE,
        lambda config: {"attention_bias": True, "num_nextn_predict_layers": 1},
        with_drafts,
    ),
    "internlm2": Twin(
        "InternLM2ForCausalLM",
        "Llama",
        WHOLE | {"attention_bias": True},
        lambda config: {"bias": True},
        internlm2,
    ),
    "internlm2-gguf": Twin(
        "InternLM2ForCausalLM",
        "Llama",
        WHOLE,
        lambda config: {"bias": False},
        internlm2,
        gguf=Conversion(ARCH.INTERNLM2, permuted=True),
    ),
    "internlm3": Twin(
        "InternLM3ForCausalLM",
        "Llama",
        GROUPED | {"attention_bias": True, "mlp_bias": True},
        lambda config: {"bias": True, "qkv_bias": True},
        renamed(),
    ),
    "internlm3-gguf": Twin(
        "InternLM3ForCausalLM",
        "Llama",
        GROUPED | {"attention_bias": True, "mlp_bias": True},
        lambda config: {"bias": True, "qkv_bias": True},
        renamed(),
        gguf=Conversion(ARCH.LLAMA, permuted=True),
    ),
    "xverse": Twin("XverseForCausalLM", "Llama", GROUPED, lambda config: {}, renamed()),
    "exaone": Twin(
        "ExaoneForCausalLM",
        "Llama",
        GROUPED | {"rope_parameters": LLAMA3_ROPE},
        lambda config: {
            "activation_function": "silu",
            "layer_norm_epsilon": config.rms_norm_eps,
            "num_layers": config.num_hidden_layers,
        },
        renamed(
            ("model.embed_tokens", "transformer.wte"),
            ("model.norm", "transformer.ln_f"),
            ("model.layers", "transformer.h"),
            ("input_layernorm", "ln_1"),
            ("post_attention_layernorm", "ln_2"),
            ("self_attn.o_proj", "attn.attention.out_proj"),
            ("self_attn", "attn.attention"),
            ("mlp.gate_proj", "mlp.c_fc_0"),
            ("mlp.up_proj", "mlp.c_fc_1"),
            ("mlp.down_proj", "mlp.c_proj"),
        ),
    ),
    "exaone-gguf": Twin(
        "ExaoneForCausalLM",
        "Llama",
        GROUPED,
        lambda config: {
            "layer_norm_epsilon": config.rms_norm_eps,
            "num_layers": config.num_hidden_layers,
        },
        renamed(("model.layers", "transformer.h")),
        gguf=Conversion(ARCH.EXAONE),
    ),
    "chatglm": Twin(
        "ChatGLMForConditionalGeneration",
        "Glm",
        GROUPED | {"pad_token_id": 0},
        lambda config: {
            "num_layers": config.num_hidden_layers,
            "multi_query_attention": True,
            "multi_query_group_num": config.num_key_value_heads,
            "kv_channels": config.head_dim,
            "seq_length": config.max_position_embeddings,
            "ffn_hidden_size": config.intermediate_size,
            "padded_vocab_size": config.vocab_size,
            "layernorm_epsilon": config.rms_norm_eps,
            "add_qkv_bias": True,
            "rmsnorm": True,
        },
        chatglm,
        gguf=Conversion(ARCH.CHATGLM, usual_keys=False),
        gguf_files=lambda tensors, config: {
            name.removeprefix("transformer."): tensor
            for name, tensor in chatglm(tensors, config).items()
            if "inv_freq" not in name
        },
    ),
    "ling": Twin(
        "BailingMoeForCausalLM",
        "Ernie4_5_Moe",
        WHOLE | ERNIE_EXPERTS | {"moe_layer_start_index": 0},
        lambda config: says_bailing(config) | {"num_experts_per_tok": config.moe_k},
        lambda tensors, config: bailing(of_ernie(tensors, config), config),
        begins=uncorrected,
        gguf=Conversion(ARCH.BAILINGMOE, says_ling_gguf),
        gguf_files=lambda tensors, config: {
            name: tensor for name, tensor in tensors.items() if "moe_statics" not in name
        },
    ),
    "ling2": Twin(
        "BailingMoeV2ForCausalLM",
        "Glm4Moe",
        GROUPED | GROUPS,
        says_bailing,
        bailing,
        gguf=Conversion(ARCH.BAILINGMOE2, says_ling2_gguf, own_parts=fused_parts),
    ),
    "minicpm": Twin(
        "MiniCPMForCausalLM",
        "Granite",
        WHOLE
        | {
            "embedding_multiplier": 12.0,
            "attention_multiplier": 0.25,
            "residual_multiplier": 1.4 / 3**0.5,
            "logits_scaling": 96 / 40,
        },
        lambda config: {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 40},
        renamed(),
        gguf=Conversion(ARCH.MINICPM, says_minicpm_gguf, permuted=True),
    ),
    "nanbeige": Twin(
        "NanbeigeForCausalLM",
        "Llama",
        GROUPED | {"num_hidden_layers": 2 * LOOPED},
        lambda config: {
            "num_hidden_layers": LOOPED,
            "num_loops": 2,
            "skip_loop_final_norm": False,
            "loop_loss_weights": [],
        },
        once,
        begins=looped,
        gguf=Conversion(ARCH.LLAMA, says_nanbeige_gguf, permuted=True, called="nanbeige"),
        gguf_files=once,
    ),
    "step-3.5": Twin(
        "Step3p5ForCausalLM",
        "Step3p7",
        step.SETTINGS,
        step.says,
        step.released,
        gguf=step.GGUF,
    ),
    "step-3.7": Twin("Step3p7FlashForCausalLM", "Step3p7", step.PLAIN, lambda _: {}, renamed()),
    "decilm": Twin(
        "DeciLMForCausalLM",
        "Llama",
        GROUPED | {"num_hidden_layers": 4, "intermediate_size": 512},
        says_decilm,
        decilm,
        begins=thinned,
        gguf=Conversion(ARCH.DECI, says_deci_gguf, own_parts=deci_parts),
        gguf_files=decilm,
    ),
    **OLDER,
}
