"""DeepSeek V4 in GGUF files, written as llama.cpp's converter writes them, against transformers.

The gguf package has no names of this architecture: those here are llama.cpp's, of llama-arch.cpp
and conversion/deepseek.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize, quantize
from torch import Tensor

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.formats.gguf import GGUFFile
from penstock.model.prepared_model import WeightFiles
from penstock.prepare.gguf_config import read_config
from penstock.prepare.hub_config import read_config as read_hub
from tests.worker.checkpoints import load_model
from tests.worker.cpu_model import CPUModel
from tests.worker.models.case_sizes import SIZES
from tests.worker.models.family_cases import CASES
from tests.worker.models.gguf_writing import finish
from tests.worker.models.parity import compare, run_with_logits
from tests.worker.models.test_parity_families import make_theirs, random_prompts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

MXFP4, Q8_0 = gguf.GGMLQuantizationType.MXFP4, gguf.GGMLQuantizationType.Q8_0
CASE: dict[str, Any] = CASES["deepseek-v4"][1] | {
    # Inputs of quantised matrices are a multiple of 32.
    "hidden_size": 64,
    "moe_intermediate_size": 32,
    "intermediate_size": 32,
    "q_lora_rank": 32,
    "o_lora_rank": 16,
    "mlp_layer_types": ["hash_moe", "hash_moe", "moe", "moe"],
    "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128},
}
RATIOS = [0, 4, 128, 4]
NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.sinks": "attn_sinks",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_norm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_proj": "attn_kv",
    "self_attn.kv_norm": "attn_kv_a_norm",
    "self_attn.o_a_proj": "attn_output_a",
    "self_attn.o_b_proj": "attn_output_b",
    "self_attn.compressor.indexer.q_b_proj": "indexer.attn_q_b",
    "self_attn.compressor.indexer.scorer.weights_proj": "indexer.proj",
    **{
        f"self_attn.compressor.{ours}{part}": f"{theirs}_compressor_{name}"
        for ours, theirs in (("", "attn"), ("indexer.", "indexer"))
        for part, name in (
            ("kv_proj", "kv"),
            ("gate_proj", "gate"),
            ("kv_norm", "norm"),
            ("position_bias", "ape"),
        )
    },
    **{
        f"{half}_hc.{part}": f"hc_{half}_{part}"
        for half in ("attn", "ffn")
        for part in ("fn", "base", "scale")
    },
    "mlp.gate": "ffn_gate_inp",
    "mlp.gate.tid2eid": "ffn_gate_tid2eid",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
    "mlp.experts.down_proj": "ffn_down_exps",
}
TOP = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    **{f"model.hc_head.hc_{part}": f"output_hc_{part}" for part in ("fn", "base", "scale")},
}


def named(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The file's tensors in the place of one of transformers'."""
    stem = name.removesuffix(".weight")
    in_layer = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", stem)
    if in_layer is None:
        yield f"{TOP[stem]}.weight", tensor
        return
    at, module = f"blk.{in_layer[1]}", in_layer[2]
    if module == "mlp.gate.e_score_correction_bias":
        yield f"{at}.exp_probs_b.bias", tensor
    elif module == "mlp.experts.gate_up_proj":
        for part, values in zip(("gate", "up"), tensor.chunk(2, dim=1), strict=True):
            yield f"{at}.ffn_{part}_exps.weight", values
    else:
        yield f"{at}.{NAMES[module]}.weight", tensor


PLAIN = re.compile(r"norm|sinks|_hc|hc_|_ape|gate_inp|bias|tid2eid")
"""Tensors that llama.cpp doesn't quantise."""


def kinds_of(name: str, kind: str) -> gguf.GGMLQuantizationType | None:
    """The type of a file's tensor: plain, with experts as the release has them, or quantised."""
    if "_exps." in name and kind == "experts in MXFP4":
        return MXFP4
    return None if kind != "Q8_0" or PLAIN.search(name) else Q8_0


def write(
    path: Path,
    theirs: Any,
    change: Callable[[gguf.GGUFWriter], object] = lambda writer: None,
    *,
    kind: str = "",
) -> None:
    """change: makes another file of it before it is written. Where the file's numbers are rounded,
    so are those of `theirs` from then on."""
    config, arch = theirs.config, "deepseek4"
    writer = gguf.GGUFWriter(str(path), arch)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(1)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    stretched = config.rope_parameters["compress"]
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(stretched["factor"])
    writer.add_rope_scaling_orig_ctx_len(stretched["original_max_position_embeddings"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_rope_dimension_count(config.qk_rope_head_dim)
    writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_uint32(f"{arch}.attention.output_lora_rank", config.o_lora_rank)
    writer.add_uint32(f"{arch}.attention.output_group_count", config.o_groups)
    # The releases' lists go on with the layer that drafts.
    writer.add_array(f"{arch}.attention.compress_ratios", [*RATIOS, 0])
    writer.add_float32(f"{arch}.attention.compress_rope_freq_base", config.compress_rope_theta)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_count(config.n_routed_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_weights_norm(config.norm_topk_prob)
    writer.add_uint32(f"{arch}.expert_gating_func", 4)
    writer.add_uint32(f"{arch}.hash_layer_count", config.mlp_layer_types.count("hash_moe"))
    limits = [float(config.swiglu_limit)] * config.num_hidden_layers
    writer.add_array(f"{arch}.swiglu_clamp_exp", limits)
    writer.add_sliding_window(config.sliding_window)
    writer.add_indexer_head_count(config.index_n_heads)
    writer.add_indexer_key_length(config.index_head_dim)
    writer.add_indexer_top_k(config.index_topk)
    writer.add_uint32(f"{arch}.nextn_predict_layers", config.num_nextn_predict_layers)
    writer.add_uint32(f"{arch}.hyper_connection.count", config.hc_mult)
    writer.add_uint32(f"{arch}.hyper_connection.sinkhorn_iterations", config.hc_sinkhorn_iters)
    writer.add_float32(f"{arch}.hyper_connection.epsilon", config.hc_eps)
    for theirs_name, whole in theirs.state_dict().items():
        for name, tensor in named(theirs_name, whole):
            rounded = kinds_of(name, kind)
            if rounded is not None:
                packed = quantize(tensor.contiguous().numpy(), rounded)
                tensor.copy_(torch.from_numpy(dequantize(packed, rounded)))
                writer.add_tensor(name, packed, raw_dtype=rounded)
            else:
                table = name.endswith("tid2eid.weight")
                values = tensor.to(torch.int32 if table else torch.float32)
                writer.add_tensor(name, values.contiguous().numpy())
    change(writer)
    finish(writer)


def settings_of(theirs: Any) -> Any:
    values = theirs.config.to_dict() | {"architectures": ["DeepseekV4ForCausalLM"]}
    return read_hub(Fields(values, "config.json"))


@pytest.mark.parametrize("case", ["", "experts in MXFP4", "Q8_0"])
def test_a_gguf_file_of_v4_equals_transformers(case: str, tmp_path: Path) -> None:
    theirs, path = make_theirs("DeepseekV4", CASE), tmp_path / "model.gguf"
    with torch.inference_mode():
        write(path, theirs, kind=case)
    config = read_config(GGUFFile(path))
    files = WeightFiles(format="gguf", files=(str(path),), dtype="F32")
    positions = int(SIZES["max_position_embeddings"])
    prompts = random_prompts()[1::2]
    model = load_model(config, files, torch.float32, positions)
    assert compare(model, theirs, prompts, 16) >= len(prompts)
    on_cpu = CPUModel(config, files, "float32", positions=positions)
    assert compare(on_cpu, theirs, prompts, 8) >= len(prompts)
    if not case:
        return
    # Matrices as the file has them, whose inputs are rounded: some rows choose other experts.
    kept = CPUModel(
        config,
        files,
        "auto",
        kv_cache_dtype="float32",
        matmul_precision="high",
        positions=positions,
    )
    [(_, found)] = run_with_logits(kept, prompts[-1:], 1)
    with torch.inference_mode():
        true = theirs(torch.tensor(prompts[-1:])).logits[0]
    off = (found[: len(true)] - true).norm(dim=-1) / true.norm(dim=-1)
    assert 0 < off.median() < 0.01


def test_settings_are_those_of_config_json(tmp_path: Path) -> None:
    theirs, path = make_theirs("DeepseekV4", CASE), tmp_path / "model.gguf"
    write(path, theirs)
    assert read_config(GGUFFile(path)) == settings_of(theirs)


def test_a_layer_that_drafts_is_not_read(tmp_path: Path) -> None:
    """Of a file that has one, and counts it."""
    theirs, path = make_theirs("DeepseekV4", CASE), tmp_path / "model.gguf"

    def add(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0]["deepseek4.block_count"].value += 1
        clamps = writer.kv_data[0]["deepseek4.swiglu_clamp_exp"]
        clamps.value = [*clamps.value, clamps.value[0]]
        for name in ("nextn.eh_proj", "nextn.enorm", "attn_kv"):
            writer.add_tensor(f"blk.4.{name}.weight", np.zeros((2, 2), np.float32))

    write(path, theirs, add)
    config = read_config(GGUFFile(path))
    assert config == settings_of(theirs)
    files = WeightFiles(format="gguf", files=(str(path),), dtype="F32")
    load_model(config, files, torch.float32, 16)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("expert_gating_func", 2, "expert_gating_func is 2; 4 is served"),
        ("attention.value_length", 16, "attention.value_length is 16; 32 is served"),
        ("attention.head_count_kv", 2, "attention.head_count_kv is 2; 1 is served"),
        ("expert_shared_count", 2, "n_shared_experts is 2; 1 is served"),
        ("swiglu_clamp_exp", [1.0, 2.0, 1.0, 1.0], "swiglu_clamp_exp is 2; 1 is served"),
        ("attention.compress_ratios", [0, 4, 16, 4], "a layer's attention is '16'"),
        ("nextn_predict_layers", 9, None),
        ("nextn_predict_layers", 65, "nextn_predict_layers is 65; 0 to 64 layers"),
        ("expert_weights_scale", 0.0, "expert_weights_scale is 0.0; a number above 0"),
    ],
    ids=str,
)
def test_settings_that_are_refused(
    key: str, value: object, said: str | None, tmp_path: Path
) -> None:
    theirs, path = make_theirs("DeepseekV4", CASE), tmp_path / "model.gguf"
    write(
        path, theirs, lambda writer: setattr(writer.kv_data[0][f"deepseek4.{key}"], "value", value)
    )
    if said is None:
        assert read_config(GGUFFile(path)) == settings_of(theirs)
        return
    with pytest.raises(UnsupportedModel, match=said):
        read_config(GGUFFile(path))
