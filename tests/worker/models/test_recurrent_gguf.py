"""Families with recurrent layers in GGUF files, converted as llama.cpp's converter does it, against
transformers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from penstock.formats.gguf import GGUFFile
from penstock.model.prepared_model import WeightFiles
from penstock.prepare.gguf_config import read_config
from tests.worker.checkpoints import load_model
from tests.worker.cpu_model import CPUModel
from tests.worker.models.gguf_writing import finish
from tests.worker.models.mamba_conversions import (
    Named,
    Writer,
    bamba,
    experts,
    falcon_h1,
    granite,
    jamba,
    mamba,
    mamba1,
    mamba2,
    nemotron_h,
    of_bamba,
    of_falcon_h1,
    of_granite,
    of_mamba,
    of_mamba1,
)
from tests.worker.models.recurrent_cases import DELTA, LINEAR, RECURRENT_CASES
from tests.worker.models.test_parity_families import make_theirs
from tests.worker.models.test_recurrent_models import POSITIONS, compare

pytestmark = pytest.mark.slow

ARCH = gguf.MODEL_ARCH


@dataclass(frozen=True)
class Conversion:
    architecture: gguf.MODEL_ARCH
    says: Callable[[Writer, Any], object]
    changes: Callable[[str, Tensor, Any], Named]
    """Gives the tensors, by the hub's names, that are written for one of the hub's."""


def lfm2(writer: Writer, config: Any) -> None:
    kinds = config.layer_types
    kv_heads = config.num_key_value_heads
    writer.add_head_count_kv([0 if kind == "conv" else kv_heads for kind in kinds])
    writer.add_shortconv_l_cache(config.conv_L_cache)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if hasattr(config, "num_experts"):
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_leading_dense_block_count(config.num_dense_layers)
        experts(writer, config)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    else:
        several = config.block_multiple_of
        writer.add_feed_forward_length(-(-(2 * config.intermediate_size // 3) // several) * several)


def kimi(writer: Writer, config: Any) -> None:
    """The sizes of latents are written as those of one KV head."""
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10_000.0)
    writer.add_head_count_kv([int(kind != LINEAR) for kind in config.layer_types])
    writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    writer.add_kda_head_dim(config.linear_head_dim)
    if config.q_lora_rank:
        writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_kv_lora_rank(config.kv_lora_rank)
    writer.add_rope_dimension_count(config.qk_rope_head_dim)
    writer.add_key_length(config.kv_lora_rank + config.qk_rope_head_dim)
    writer.add_key_length_mla(config.qk_nope_head_dim + config.qk_rope_head_dim)
    writer.add_value_length_mla(config.v_head_dim)
    writer.add_expert_count(config.num_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_group_count(config.n_group)
    writer.add_expert_group_used_count(config.topk_group)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_leading_dense_block_count(config.mlp_layer_types.count("dense"))
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_vocab_size(config.vocab_size)


def of_kimi(name: str, tensor: Tensor, config: Any) -> Named:
    """Releases call the network of a layer without experts mlp."""
    if name.split(".")[-2] in ("gate_proj", "up_proj", "down_proj"):
        name = name.replace("block_sparse_moe.", "mlp.")
    if name.endswith("conv1d.weight"):
        yield name, tensor.reshape(1, len(tensor), 1, -1)
    elif name.endswith("A_log"):
        yield name, -tensor.exp()
    elif name.endswith("dt_bias"):
        yield name.replace("dt_bias", "dt_proj.bias"), tensor
    elif name.endswith("kv_b_proj.weight"):
        heads = tensor.view(config.num_attention_heads, -1, config.kv_lora_rank)
        keys, values = heads.split((config.qk_nope_head_dim, config.v_head_dim), 1)
        yield name.replace("kv_b_proj", "k_b_proj"), keys.transpose(1, 2)
        yield name.replace("kv_b_proj", "v_b_proj"), values
    else:
        yield name.replace("correction_bias", "correction.bias"), tensor


def qwen(writer: Writer, config: Any) -> None:
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    rope = config.rope_parameters
    rotating = int(config.head_dim * rope["partial_rotary_factor"])
    writer.add_rope_dimension_count(rotating)
    writer.add_rope_dimension_sections([*rope.get("mrope_section", (rotating // 2, 0, 0)), 0])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_full_attention_interval(1 + config.layer_types.index("full_attention"))
    mamba(
        writer,
        heads=config.linear_num_value_heads,
        inner=config.linear_num_value_heads * config.linear_value_head_dim,
        groups=config.linear_num_key_heads,
        state=config.linear_key_head_dim,
        kernel=config.linear_conv_kernel_dim,
    )
    if hasattr(config, "num_experts"):
        experts(writer, config)
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    else:
        writer.add_feed_forward_length(config.intermediate_size)


def of_lfm2(name: str, tensor: Tensor, config: Any) -> Named:
    yield (
        name.replace("expert_bias", "expert_bias.bias"),
        (tensor.squeeze(1) if "conv.conv" in name else tensor),
    )


def of_qwen_next(name: str, tensor: Tensor, config: Any) -> Named:
    keys, values = config.linear_num_key_heads, config.linear_num_value_heads
    several = values // keys
    sizes = [config.linear_key_head_dim] * 2 + [several * config.linear_value_head_dim] * 2
    if name.endswith("A_log"):
        yield name, -tensor.exp()
    elif name.endswith("dt_bias"):
        yield name.replace("dt_bias", "dt_proj.bias"), tensor
    elif "conv1d" in name:
        yield name, tensor.squeeze(1)
    elif name.endswith("norm.weight") and "linear_attn" not in name:
        yield name, tensor + 1
    elif name.endswith("in_proj_qkvz.weight"):
        parts = tensor.view(keys, sum(sizes), -1).split(sizes, 1)
        query, key, value, gate = (part.flatten(0, 1) for part in parts)
        yield name.replace("qkvz", "qkv"), torch.cat((query, key, value))
        yield name.replace("qkvz", "z"), gate
    else:
        yield name, tensor


def of_qwen35(name: str, tensor: Tensor, config: Any) -> Named:
    """Value heads are dealt out to key heads in turn."""
    keys, values = config.linear_num_key_heads, config.linear_num_value_heads
    size, own = config.linear_value_head_dim, 2 * keys * config.linear_key_head_dim

    def dealt(part: Tensor, rows: int) -> Tensor:
        by_head = part.unflatten(0, (keys, values // keys, rows))
        return by_head.transpose(0, 1).flatten(0, 2)

    if name.endswith(("in_proj_qkv.weight", "conv1d.weight")):
        tensor = torch.cat((tensor[:own], dealt(tensor[own:], size)))
    elif name.endswith("in_proj_z.weight"):
        tensor = dealt(tensor, size)
    elif name.endswith(("in_proj_b.weight", "in_proj_a.weight", "A_log", "dt_bias")):
        tensor = dealt(tensor, 1)
    elif name.endswith("linear_attn.out_proj.weight"):
        tensor = dealt(tensor.T, size).T
    yield from of_qwen_next(name, tensor, config)


SMALL = {"initializer_range": 0.05}
"""Small weights: with larger ones, rounding errors of transformers' chunks would be seen."""

OWN = {
    "mamba-biases-of-convolutions": (
        "Mamba",
        RECURRENT_CASES["mamba-biases"][1] | {"use_bias": False, "use_conv_bias": True},
    ),
    "jamba-dense-no-biases": (
        "Jamba",
        RECURRENT_CASES["jamba-dense"][1] | {"mamba_proj_bias": False},
    ),
    "kimi-linear-as-many-heads": (
        "KimiLinear",
        RECURRENT_CASES["kimi-linear"][1] | {"linear_num_heads": 4},
    ),
    "kimi-linear-groups-as-many-heads": (
        "KimiLinear",
        RECURRENT_CASES["kimi-linear-groups"][1] | {"linear_num_heads": 4, "norm_topk_prob": True},
    ),
    "mamba2-biases-unlimited": (
        "Mamba2",
        {
            key: value
            for key, value in RECURRENT_CASES["mamba2-biases"][1].items()
            if key != "time_step_limit"
        },
    ),
    "granite-moe-hybrid-unlimited": (
        "GraniteMoeHybrid",
        {
            key: value
            for key, value in RECURRENT_CASES["granite-moe-hybrid"][1].items()
            if key not in ("position_embedding_type", "time_step_limit", "mamba_proj_bias")
        },
    ),
    "bamba-biases-of-attention": (
        "Bamba",
        RECURRENT_CASES["bamba"][1] | {"attn_layer_indices": [0, 2], "attention_bias": True},
    ),
    "granite-hybrid-one-size": (
        "GraniteMoeHybrid",
        RECURRENT_CASES["granite-hybrid"][1] | {"shared_intermediate_size": 100},
    ),
    "qwen3-next-sparse": (
        "Qwen3Next",
        RECURRENT_CASES["qwen3-next"][1]
        | {"num_hidden_layers": 4, "layer_types": None, "mlp_only_layers": []}
        | SMALL,
    ),
    "qwen35-moe-of-four": (
        "Qwen3_5Moe",
        RECURRENT_CASES["qwen35-moe"][1] | {"num_hidden_layers": 4, "layer_types": None} | SMALL,
    ),
    "qwen35-as-many-heads": (
        "Qwen3_5",
        DELTA | {"num_hidden_layers": 4, "layer_types": None, "linear_num_value_heads": 2},
    ),
}
CONVERSIONS = {
    "lfm2": Conversion(ARCH.LFM2, lfm2, of_lfm2),
    "lfm2-moe": Conversion(ARCH.LFM2MOE, lfm2, of_lfm2),
    "granite-hybrid-one-size": Conversion(ARCH.GRANITE_HYBRID, granite, of_granite),
    "granite-moe-hybrid-unlimited": Conversion(ARCH.GRANITE_HYBRID, granite, of_granite),
    "bamba": Conversion(ARCH.GRANITE_HYBRID, bamba, of_bamba),
    "bamba-biases-of-attention": Conversion(ARCH.GRANITE_HYBRID, bamba, of_bamba),
    "falcon-h1": Conversion(ARCH.FALCON_H1, falcon_h1, of_falcon_h1),
    "falcon-h1-norm": Conversion(ARCH.FALCON_H1, falcon_h1, of_falcon_h1),
    "mamba": Conversion(ARCH.MAMBA, mamba1, of_mamba1),
    "mamba-biases-of-convolutions": Conversion(ARCH.MAMBA, mamba1, of_mamba1),
    "falcon-mamba": Conversion(ARCH.MAMBA, mamba1, of_mamba1),
    "jamba": Conversion(ARCH.JAMBA, jamba, of_mamba1),
    "jamba-dense-no-biases": Conversion(ARCH.JAMBA, jamba, of_mamba1),
    "mamba2": Conversion(ARCH.MAMBA2, mamba2, of_mamba),
    "mamba2-biases-unlimited": Conversion(ARCH.MAMBA2, mamba2, of_mamba),
    "kimi-linear-as-many-heads": Conversion(ARCH.KIMI_LINEAR, kimi, of_kimi),
    "kimi-linear-groups-as-many-heads": Conversion(ARCH.KIMI_LINEAR, kimi, of_kimi),
    "nemotron-h": Conversion(ARCH.NEMOTRON_H, nemotron_h, of_mamba),
    "nemotron-h-moe": Conversion(ARCH.NEMOTRON_H_MOE, nemotron_h, of_mamba),
    "nemotron-h-latent": Conversion(ARCH.NEMOTRON_H_MOE, nemotron_h, of_mamba),
    "qwen3-next-sparse": Conversion(ARCH.QWEN3NEXT, qwen, of_qwen_next),
    "qwen35": Conversion(ARCH.QWEN35, qwen, of_qwen35),
    "qwen35-as-many-heads": Conversion(ARCH.QWEN35, qwen, of_qwen35),
    "qwen35-moe-of-four": Conversion(ARCH.QWEN35MOE, qwen, of_qwen35),
}
"""Conversions by case; those that aren't in RECURRENT_CASES are in OWN."""


def stacked(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Puts experts' matrices, which the hub's files have one by one, into one tensor."""
    found: dict[str, Tensor] = {}
    groups: dict[str, list[Tensor]] = {}
    for name, tensor in tensors.items():
        before, mark, behind = name.partition(".experts.")
        if not mark or not behind[0].isdigit():
            found[name] = tensor
            continue
        module = behind.partition(".")[2].removesuffix(".weight")
        ours = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}.get(module, module)
        layer = before.split(".")[2]
        stack = groups.setdefault(f"model.layers.{layer}.mlp.experts.{ours}.weight", [])
        number = int(behind.partition(".")[0])
        stack.extend([torch.empty(0)] * (number + 1 - len(stack)))
        stack[number] = tensor
    return found | {name: torch.stack(matrices) for name, matrices in groups.items()}


def write(path: Path, hub: Path, config: Any, how: Conversion) -> None:
    writer = Writer(str(path), gguf.MODEL_ARCH_NAMES[how.architecture])
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(getattr(config, "num_attention_heads", 0))
    how.says(writer, config)
    names = gguf.get_tensor_name_map(how.architecture, config.num_hidden_layers)
    for theirs, whole in stacked(load_file(hub / "model.safetensors")).items():
        for name, tensor in how.changes(theirs, whole, config):
            found = names.get_name(name, try_suffixes=(".weight", ".bias"))
            assert found is not None, name
            writer.add_tensor(found, tensor.contiguous().float().numpy())
    finish(writer)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("case", CONVERSIONS)
def test_a_recurrent_gguf_file_equals_transformers(case: str, tmp_path: Path) -> None:
    theirs = make_theirs(*(OWN.get(case) or RECURRENT_CASES[case]))
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "model.gguf"
    write(path, tmp_path, theirs.config, CONVERSIONS[case])
    config = read_config(GGUFFile(path))
    files = WeightFiles(format="gguf", files=(str(path),), dtype="F32")
    compare(load_model(config, files, torch.float32, POSITIONS), theirs)
    compare(CPUModel(config, files, "float32", positions=POSITIONS), theirs)
