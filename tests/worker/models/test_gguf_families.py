"""Families of models in GGUF files, converted as llama.cpp's converter does it, against
transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import gguf
import pytest
import torch
from torch import Tensor

from penstock.formats.gguf import GGUFFile
from penstock.model.config import WeightFiles
from penstock.prepare.from_gguf import read_config
from tests.worker.checkpoints import load_model
from tests.worker.cpu_model import CPUModel
from tests.worker.models import gemma_gguf
from tests.worker.models.family_cases import CASES, GROUPED, SIZES, WHOLE
from tests.worker.models.parity import compare
from tests.worker.models.test_parity_families import make_theirs, random_prompts

pytestmark = pytest.mark.slow


Writer = gguf.GGUFWriter
Made = Callable[[str, str], Writer]
"""Makes a writer of a path and an architecture."""


@dataclass(frozen=True)
class Conversion:
    """What llama.cpp's converter does beyond renaming."""

    architecture: gguf.MODEL_ARCH
    says: Callable[[Writer, Any], object] = lambda writer, config: None
    """Writes the family's own keys."""
    plus_one: bool = False
    """Whether norms become 1 + weight."""
    permuted: bool = False
    """Whether the rows of q and k are put so that rotary pairs are adjacent."""
    rms: bool = True
    latents: Literal["one matrix", "by head"] | None = None
    """How the maps of latents to keys and values are stored; None: there are no latents."""
    alternating: bool = False
    """Whether the rows of gate and up alternate in transposed stacks (gpt-oss)."""
    own_parts: Callable[[str, Tensor, dict[str, Tensor]], Iterator[tuple[str, Tensor]]] | None = (
        None
    )
    """The file's tensors in the place of one of transformers'; None: as all families."""


def windows(writer: Writer, config: Any) -> None:
    writer.add_sliding_window(config.sliding_window)


def gemma2(writer: Writer, config: Any) -> None:
    windows(writer, config)
    writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    writer.add_final_logit_softcapping(config.final_logit_softcapping)


def granite(writer: Writer, config: Any) -> None:
    writer.add_attention_scale(config.attention_multiplier)
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_residual_scale(config.residual_multiplier)
    writer.add_logit_scale(config.logits_scaling)


def cohere2(writer: Writer, config: Any) -> None:
    windows(writer, config)
    writer.add_logit_scale(config.logit_scale)


def experts(writer: Writer, config: Any) -> None:
    writer.add_expert_count(config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)


def some_experts(writer: Writer, config: Any) -> None:
    writer.add_expert_count(config.num_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)


def behind_a_tower(writer: Writer, config: Any) -> None:
    """Text has three equal numbers in the place of a position."""
    experts(writer, config)
    writer.add_rope_dimension_sections([4, 2, config.head_dim // 2 - 6, 0])
    writer.add_num_deepstack_layers(2)


def minimax_m2(writer: Writer, config: Any) -> None:
    some_experts(writer, config)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_expert_feed_forward_length(config.intermediate_size)


def gpt_oss(writer: Writer, config: Any) -> None:
    windows(writer, config)
    writer.add_expert_count(config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.intermediate_size)
    rope = config.rope_parameters
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(rope["factor"])
    writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def deepseek(writer: Writer, config: Any) -> None:
    writer.add_kv_lora_rank(config.kv_lora_rank)
    if config.q_lora_rank:
        writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_leading_dense_block_count(getattr(config, "first_k_dense_replace", 1))
    writer.add_expert_count(config.n_routed_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_weights_norm(config.norm_topk_prob)
    sigmoid = config.model_type != "deepseek_v2"
    kinds = gguf.ExpertGatingFuncType
    writer.add_expert_gating_func(kinds.SIGMOID if sigmoid else kinds.SOFTMAX)
    if sigmoid:
        writer.add_expert_group_count(config.n_group)
        writer.add_expert_group_used_count(config.topk_group)
    rope = config.rope_parameters
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])


def add_heads(writer: Writer, config: Any, how: Conversion) -> None:
    if how.latents is None:
        head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        rope = config.rope_parameters.get("full_attention", config.rope_parameters)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_key_length(head)
        writer.add_value_length(head)
        writer.add_rope_dimension_count(int(head * rope.get("partial_rotary_factor", 1.0)))
        return
    head = config.qk_nope_head_dim + config.qk_rope_head_dim
    writer.add_rope_dimension_count(config.qk_rope_head_dim)
    if how.latents == "one matrix":
        writer.add_head_count_kv(config.num_attention_heads)
        writer.add_key_length(head)
        writer.add_value_length(config.v_head_dim)
        return
    writer.add_head_count_kv(1)
    writer.add_key_length(config.kv_lora_rank + config.qk_rope_head_dim)
    writer.add_value_length(config.kv_lora_rank)
    writer.add_key_length_mla(head)
    writer.add_value_length_mla(config.v_head_dim)


def by_head(name: str, tensor: Tensor, config: Any) -> Iterator[tuple[str, Tensor]]:
    """Separates tensors as `separated` does, with the maps of latents cut by head, those to keys
    transposed."""
    if not name.endswith("kv_b_proj.weight"):
        yield from separated(name, tensor)
        return
    heads = tensor.view(config.num_attention_heads, -1, config.kv_lora_rank)
    stem = name.removesuffix("kv_b_proj.weight")
    yield f"{stem}k_b_proj.weight", heads[:, : config.qk_nope_head_dim].transpose(1, 2)
    yield f"{stem}v_b_proj.weight", heads[:, config.qk_nope_head_dim :]


def glm45(writer: Writer, config: Any) -> None:
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim // 2)
    writer.add_leading_dense_block_count(config.first_k_dense_replace)
    writer.add_expert_count(config.n_routed_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_weights_norm(config.norm_topk_prob)


ARCH = gguf.MODEL_ARCH
CONVERSIONS = {
    "gemma": Conversion(ARCH.GEMMA, plus_one=True),
    "gemma2": Conversion(ARCH.GEMMA2, gemma2, plus_one=True),
    "gemma3-of-six": Conversion(ARCH.GEMMA3, windows, plus_one=True),
    "gemma3n": Conversion(ARCH.GEMMA3N, gemma_gguf.gemma3n, own_parts=gemma_gguf.parts),
    "gemma4-alike": Conversion(ARCH.GEMMA4, gemma_gguf.gemma4, own_parts=gemma_gguf.parts),
    "gemma4-shared-kv": Conversion(ARCH.GEMMA4, gemma_gguf.gemma4, own_parts=gemma_gguf.parts),
    "gemma4-experts": Conversion(ARCH.GEMMA4, gemma_gguf.gemma4, own_parts=gemma_gguf.parts),
    "phi3-window": Conversion(ARCH.PHI3, windows),
    "smollm3": Conversion(ARCH.SMOLLM3, permuted=True),
    "olmo2": Conversion(ARCH.OLMO2),
    "granite": Conversion(ARCH.GRANITE, granite, permuted=True),
    "glm4": Conversion(ARCH.GLM4),
    "cohere": Conversion(
        ARCH.COMMAND_R, lambda writer, config: writer.add_logit_scale(config.logit_scale), rms=False
    ),
    "cohere2": Conversion(ARCH.COHERE2, cohere2, rms=False),
    "starcoder2-all": Conversion(ARCH.STARCODER2, rms=False),
    "stablelm": Conversion(
        ARCH.STABLELM,
        lambda writer, config: writer.add_parallel_residual(config.use_parallel_residual),
        rms=False,
    ),
    "qwen3-moe-all": Conversion(ARCH.QWEN3MOE, experts),
    "qwen3-vl-moe-text": Conversion(ARCH.QWEN3VLMOE, behind_a_tower),
    "nemotron": Conversion(ARCH.NEMOTRON, plus_one=True, rms=False),
    "arcee-plain": Conversion(ARCH.ARCEE, permuted=True),
    "olmoe": Conversion(ARCH.OLMOE, some_experts),
    "exaone4-windows": Conversion(ARCH.EXAONE4, windows),
    "ernie45-plain": Conversion(ARCH.ERNIE4_5),
    "deepseek-v2-lite": Conversion(ARCH.DEEPSEEK2, deepseek, latents="one matrix"),
    "deepseek-v3-plain": Conversion(ARCH.DEEPSEEK2, deepseek, latents="by head"),
    "glm47-flash": Conversion(ARCH.DEEPSEEK2, deepseek, latents="by head"),
    "glm45": Conversion(ARCH.GLM4_MOE, glm45),
    "minimax-m2": Conversion(ARCH.MINIMAXM2, minimax_m2),
    "gpt-oss": Conversion(ARCH.GPT_OSS, gpt_oss, alternating=True),
    "llama-plain": Conversion(ARCH.LLAMA, permuted=True),
    "qwen2-plain": Conversion(ARCH.QWEN2),
    "qwen3-plain": Conversion(ARCH.QWEN3),
}
"""Conversions by case; those that aren't in CASES are in OWN."""
OWN: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma3-of-six": ("Gemma3", CASES["gemma2"][1] | {"num_hidden_layers": 6}),
    "gemma2": ("Gemma2", CASES["gemma2"][1] | {"query_pre_attn_scalar": 16}),
    "starcoder2-all": ("Starcoder2", {**CASES["starcoder2"][1], "sliding_window": None}),
    "qwen3-moe-all": ("Qwen3Moe", {**CASES["qwen3-moe"][1], "mlp_only_layers": []}),
}
OWN["qwen3-vl-moe-text"] = OWN["qwen3-moe-all"]
OWN |= {
    "arcee-plain": ("Arcee", {**CASES["arcee"][1], "mlp_bias": False}),
    "ernie45-plain": ("Ernie4_5", {**CASES["ernie45"][1], "use_bias": False}),
    "llama-plain": ("Llama", GROUPED),
    "qwen2-plain": ("Qwen2", WHOLE),
    "qwen3-plain": ("Qwen3", GROUPED),
}
OWN["deepseek-v3-plain"] = ("DeepseekV3", {**CASES["deepseek-v3"][1], "attention_bias": False})
NOT_ON_CPU = ("deepseek-v3-plain",)
"""A latent has 40 numbers."""
ON_DEVICE = ("gemma4-shared-kv", "gpt-oss", "deepseek-v2-lite", "cohere2", "olmoe", "llama-plain")
"""Cases that the CUDA kernels compute, in Triton's interpreter."""
OWN["gemma3-of-six"][1]["query_pre_attn_scalar"] = 16


def adjacent(rows: Tensor, heads: int) -> Tensor:
    """The two rows of a rotary pair one after the other."""
    return rows.view(heads, 2, rows.shape[0] // heads // 2, -1).transpose(1, 2).reshape(rows.shape)


def separated(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The matrices that this release of transformers keeps as one for all experts, as the files of
    the hub have them."""
    if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        yield name.replace("correction_bias", "correction.bias"), tensor
        return
    if name.endswith("down_proj"):
        yield f"{name}.weight", tensor
        return
    for part, values in zip(("gate_proj", "up_proj"), tensor.chunk(2, dim=1), strict=True):
        yield f"{name.removesuffix('gate_up_proj')}{part}.weight", values


def unstacked(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Separates gpt-oss's tensors as `separated` does; its sinks are called weights besides."""
    stem = name.removesuffix("_bias")
    kind = "bias" if stem != name else "weight"
    if stem.endswith("experts.down_proj"):
        yield f"{stem}.{kind}", tensor if kind == "bias" else tensor.transpose(1, 2)
    elif stem.endswith("experts.gate_up_proj"):
        whole = tensor if kind == "bias" else tensor.transpose(1, 2)
        for first, part in enumerate(("gate_proj", "up_proj")):
            yield f"{stem.removesuffix('gate_up_proj')}{part}.{kind}", whole[:, first::2]
    else:
        yield f"{name}.weight" if name.endswith("sinks") else name, tensor


def write(path: Path, theirs: Any, how: Conversion, made: Made = Writer) -> None:
    config = theirs.config
    config.allow_global_per_layer_attribute_access = True  # of Gemma 4
    writer = made(str(path), gguf.MODEL_ARCH_NAMES[how.architecture])
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    add_heads(writer, config, how)
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(rope["rope_theta"])
    eps = next(
        getattr(config, key)
        for key in ("rms_norm_eps", "layer_norm_eps", "norm_epsilon", "norm_eps")
        if hasattr(config, key)
    )
    (writer.add_layer_norm_rms_eps if how.rms else writer.add_layer_norm_eps)(eps)
    how.says(writer, config)
    names = gguf.get_tensor_name_map(how.architecture, config.num_hidden_layers)
    tied = getattr(config, "tie_word_embeddings", False)
    for theirs_name, whole in theirs.state_dict().items():
        if tied and theirs_name == "lm_head.weight":
            continue
        parts = (unstacked if how.alternating else separated)(theirs_name, whole)
        if how.own_parts is not None:
            parts = how.own_parts(theirs_name, whole, theirs.state_dict())
        if how.latents == "by head":
            parts = by_head(theirs_name, whole, config)
        for name, tensor in parts:
            if how.plus_one and name.endswith("norm.weight"):
                tensor = tensor + 1
            for part, heads in (
                ("q_proj.", config.num_attention_heads),
                ("k_proj.", config.num_key_value_heads),
            ):
                if how.permuted and part in name:
                    tensor = adjacent(tensor, heads)
            found = names.get_name(name, try_suffixes=(".weight", ".bias"))
            found = name if name.endswith(".scale") else found
            assert found is not None, name
            writer.add_tensor(found, tensor.contiguous().float().numpy())
    finish(writer)


def finish(writer: Writer) -> None:
    """Writes the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("case", CONVERSIONS)
def test_equals_transformers(case: str, tmp_path: Path) -> None:
    theirs = make_theirs(*(OWN.get(case) or CASES[case]))
    path = tmp_path / "model.gguf"
    write(path, theirs, CONVERSIONS[case])
    config = read_config(GGUFFile(path))
    files = WeightFiles(format="gguf", files=(str(path),), dtype="F32")
    positions = SIZES["max_position_embeddings"]
    model = load_model(config, files, torch.float32, positions)
    prompts = [prompt for prompt in random_prompts() if len(prompt) < 100]
    assert compare(model, theirs, prompts, 16) >= len(prompts)
    if case in NOT_ON_CPU:
        return
    on_cpu = CPUModel(config, files, "float32", positions=positions)
    assert compare(on_cpu, theirs, prompts[::2], 8) >= len(prompts[::2])
