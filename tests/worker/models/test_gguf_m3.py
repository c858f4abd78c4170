"""MiniMax M3 in GGUF files, written as llama.cpp's converter writes them, against transformers and
the same model's safetensors file.

The gguf package has no names of this architecture: those here are llama.cpp's, of llama-arch.cpp
and conversion/minimax.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import msgspec
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.formats.gguf import GGUFFile
from penstock.model.config import ModelConfig
from penstock.model.prepared_model import WeightFiles
from penstock.prepare.gguf_config import read_config
from penstock.prepare.hub_config import read_config as read_hub
from tests.worker.checkpoints import load_model
from tests.worker.cpu_model import CPUModel
from tests.worker.models.case_sizes import SIZES
from tests.worker.models.family_cases import CASES
from tests.worker.models.gguf_writing import finish, separated
from tests.worker.models.parity import compare, run_with_logits
from tests.worker.models.test_parity_families import make_theirs, random_prompts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ARCH = "minimax-m3"
FAMILY = "MiniMaxM3VL"
OWN = {"shared_intermediate_size": 24}
"""The shared expert of files is as large as the others."""
CASE: dict[str, Any] = CASES["minimax-m3"][1] | OWN
POSITIONS = int(SIZES["max_position_embeddings"])
NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    **{f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"},
    "self_attn.o_proj": "attn_output",
    **{f"self_attn.{part}_norm": f"attn_{part}_norm" for part in "qk"},
    **{
        f"self_attn.indexer.{part}_{kind}": f"indexer.{part}_{kind}"
        for part in "qk"
        for kind in ("proj", "norm")
    },
    "mlp.gate": "ffn_gate_inp",
    **{
        f"mlp.{theirs}{part}_proj": f"ffn_{part}{ours}"
        for theirs, ours in (("", ""), ("shared_experts.", "_shexp"), ("experts.", "_exps"))
        for part in ("gate", "up", "down")
    },
}
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def named(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The file's tensors in the place of one of transformers'."""
    if name.endswith("norm.weight"):
        tensor = tensor + 1
    in_layer = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", name)
    if in_layer is None:
        yield f"{TOP[name.removesuffix('.weight')]}.weight", tensor
        return
    at, module = f"blk.{in_layer[1]}", in_layer[2]
    if module.endswith("e_score_correction_bias"):
        yield f"{at}.exp_probs_b.bias", tensor
        return
    if module.endswith("gate_up_proj.weight"):
        stem = module.removesuffix("gate_up_proj.weight")
        for part, values in zip(("gate", "up"), tensor.chunk(2), strict=True):
            yield f"{at}.{NAMES[f'{stem}{part}_proj']}.weight", values
        return
    for theirs, values in separated(module, tensor):
        yield f"{at}.{NAMES[theirs.removesuffix('.weight')]}.weight", values


def write(
    path: Path, theirs: Any, change: Callable[[gguf.GGUFWriter], object] = lambda writer: None
) -> None:
    """change: makes another file of it before it is written."""
    config, writer = theirs.config, gguf.GGUFWriter(str(path), ARCH)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.dense_intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_expert_count(config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_expert_feed_forward_length(config.intermediate_size)
    writer.add_rope_dimension_count(config.head_dim // 2)
    writer.add_expert_shared_count(1)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_weights_norm(True)
    writer.add_indexer_head_count(config.index_n_heads)
    writer.add_indexer_key_length(config.index_head_dim)
    writer.add_indexer_top_k(config.index_topk_blocks)
    writer.add_uint32(f"{ARCH}.attention.indexer.block_size", config.index_block_size)
    writer.add_uint32(f"{ARCH}.attention.indexer.local_blocks", config.index_local_blocks)
    writer.add_leading_dense_block_count(config.mlp_layer_types.count("dense"))
    writer.add_vocab_size(config.vocab_size)
    for theirs_name, whole in theirs.state_dict().items():
        for name, tensor in named(theirs_name, whole):
            writer.add_tensor(name, tensor.contiguous().float().numpy())
    change(writer)
    finish(writer)


def settings_of(theirs: Any) -> ModelConfig:
    values = theirs.config.to_dict() | {"architectures": [f"{FAMILY}ForCausalLM"]}
    return read_hub(Fields(values, "config.json"))


def plain_norms(config: ModelConfig) -> ModelConfig:
    """With norms whose weights are as the file has them."""
    norm = msgspec.structs.replace(config.norm, plus_one=False)
    return msgspec.structs.replace(config, norm=norm)


@pytest.mark.parametrize("case", ["minimax-m3", "minimax-m3-two-local"])
def test_a_gguf_file_of_m3_equals_transformers(case: str, tmp_path: Path) -> None:
    """And the same weights in safetensors, to the bit."""
    theirs, path = make_theirs(FAMILY, CASES[case][1] | OWN), tmp_path / "model.gguf"
    write(path, theirs)
    config = read_config(GGUFFile(path))
    assert config == plain_norms(settings_of(theirs))
    files = WeightFiles(format="gguf", files=(str(path),), dtype="F32")
    prompts = random_prompts()[1::2]
    found = [
        load_model(config, files, torch.float32, POSITIONS),
        CPUModel(config, files, "float32", positions=POSITIONS),
    ]
    assert compare(found[0], theirs, prompts, 16) >= len(prompts)
    assert compare(found[1], theirs, prompts, 8) >= len(prompts)
    saved = tmp_path / "model.safetensors"
    save_file({name: each.contiguous() for name, each in theirs.state_dict().items()}, saved)
    as_hub = WeightFiles(format="safetensors", files=(str(saved),), dtype="float32")
    hub = settings_of(theirs)
    twins = [
        load_model(hub, as_hub, torch.float32, POSITIONS),
        CPUModel(hub, as_hub, "float32", positions=POSITIONS),
    ]
    for one, other in zip(found, twins, strict=True):
        for (_, ours), (_, same) in zip(
            run_with_logits(one, prompts[-2:], 4),
            run_with_logits(other, prompts[-2:], 4),
            strict=True,
        ):
            assert torch.equal(ours, same)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("expert_gating_func", 1, "expert_gating_func is 1; 2 is needed"),
        ("expert_shared_count", 2, "expert_shared_count is 2; 1 is needed"),
        ("expert_weights_scale", 0.0, "expert_weights_scale is 0.0; a number above 0"),
        ("expert_weights_scale", -2.0, "expert_weights_scale is -2.0; a number above 0"),
        ("expert_weights_scale", math.nan, "expert_weights_scale is nan; a finite number"),
        ("attention.indexer.head_count", 4, "the index has 4 heads, and attention 2 KV heads"),
        ("attention.indexer.local_blocks", 4, "local_blocks is 4; 1 to 3 are allowed"),
        ("attention.indexer.block_size", None, "attention.indexer.block_size"),
    ],
    ids=str,
)
def test_settings_that_are_refused(
    key: str, value: float | None, said: str, tmp_path: Path
) -> None:
    """None: the file lacks it, as one without an index does."""
    theirs, path = make_theirs(FAMILY, CASE), tmp_path / "model.gguf"

    def change(writer: gguf.GGUFWriter) -> None:
        if value is None:
            del writer.kv_data[0][f"{ARCH}.{key}"]
        else:
            writer.kv_data[0][f"{ARCH}.{key}"].value = value

    write(path, theirs, change)
    with pytest.raises(UnsupportedModel, match=said):
        read_config(GGUFFile(path))
