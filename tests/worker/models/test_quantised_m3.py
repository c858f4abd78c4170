"""MiniMax M3's checkpoints in the names and formats of releases: MXFP8 throughout, and NVIDIA's,
whose experts are in NVFP4. They compute what their weights mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file
from torch import Tensor

from penstock.prepare import load_manifest, prepare
from testing.tiny_models import write_hub_folder
from tests.worker.models.family_cases import CASES
from tests.worker.models.gguf_writing import separated
from tests.worker.models.quantised_twins import logits_as_meant, logits_as_stored
from tests.worker.models.test_parity_families import make_theirs, random_prompts
from tests.worker.quantised_writers import Written, fp8, nvfp4

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]

INNER = {"intermediate_size": 32, "shared_intermediate_size": 32, "dense_intermediate_size": 96}
WIDE = INNER | {"hidden_size": 96, "vocab_size": 700}
IGNORED = ["lm_head", "model.embed_tokens", "vision_tower", "multi_modal_projector"]
MXFP8 = {
    "quant_method": "mxfp8",
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "scale_fmt": "ue8m0",
    "weight_block_size": [1, 32],
    "ignored_layers": IGNORED,
}
PLAIN = re.compile(r"embed_tokens|lm_head|norm|\.gate\.|correction_bias")
"""Names of what releases leave unquantised."""
PARTS = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}


def mixed(modules: list[str]) -> dict[str, Any]:
    """The settings of NVIDIA's release, of these quantised modules."""
    layers = {
        name: {"quant_algo": "NVFP4", "group_size": 16}
        if ".experts." in name
        else {"quant_algo": "MXFP8"}
        for name in modules
    }
    return {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "kv_cache_quant_algo": None,
        "exclude_modules": IGNORED,
        "quantized_layers": layers,
    }


def of_release(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """A release's tensors in the place of one of transformers'."""
    at, _, module = name.rpartition(".mlp.")
    mlp = "mlp" if ".layers.0." in name else "block_sparse_moe"
    if not at:
        yield f"language_model.{name.replace('.indexer.', '.index_')}", tensor
        return
    at = f"language_model.{at}.{mlp}"
    if module.endswith("gate_up_proj.weight"):
        stem = module.removesuffix("gate_up_proj.weight")
        for part, values in zip(("gate", "up"), tensor.chunk(2), strict=True):
            yield f"{at}.{stem}{part}_proj.weight", values
    elif module.startswith("experts."):
        for theirs, stack in separated(module, tensor):
            part = PARTS[theirs.split(".")[1]]
            for number, matrix in enumerate(stack):
                yield f"{at}.experts.{number}.{part}.weight", matrix
    else:
        yield f"{at}.{module.replace('gate.e_score', 'e_score')}", tensor


def config_of(theirs: Any) -> dict[str, Any]:
    """What the releases' config.json says of this model."""
    config = theirs.config
    sparse = [int(kind == "sparse") for kind in config.mlp_layer_types]
    head = config.head_dim
    text = {
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": head,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "use_gemma_norm": True,
        "attention_output_gate": False,
        "rope_theta": config.rope_parameters["rope_theta"],
        "rotary_dim": head // 2,
        "partial_rotary_factor": 0.5,
        "hidden_act": "swigluoai",
        "use_qk_norm": True,
        "tie_word_embeddings": False,
        "num_local_experts": config.num_local_experts,
        "num_experts_per_tok": config.num_experts_per_tok,
        "n_shared_experts": 1,
        "scoring_func": "sigmoid",
        "use_routing_bias": True,
        "moe_layer_freq": sparse,
        "qk_norm_type": "per_head",
        "num_mtp_modules": 1,
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
        "routed_scaling_factor": config.routed_scaling_factor,
        "sparse_attention_config": {
            "use_sparse_attention": True,
            "sparse_index_dim": config.index_head_dim,
            "sparse_num_index_heads": config.index_n_heads,
            "sparse_topk_blocks": config.index_topk_blocks,
            "sparse_block_size": config.index_block_size,
            "sparse_disable_index_value": sparse,
            "sparse_score_type": "max",
            "sparse_init_block": 0,
            "sparse_local_block": config.index_local_blocks,
            "sparse_attention_freq": sparse,
        },
        "architectures": ["MiniMaxM3SparseForCausalLM"],
    }
    return {
        "architectures": ["MiniMaxM3SparseForConditionalGeneration"],
        "model_type": "minimax_m3_vl",
        "text_config": text | WIDE,
        "torch_dtype": "bfloat16",
    }


@pytest.mark.parametrize(
    "experts",
    [None, nvfp4(modelopt=True)],
    ids=["mxfp8", "nvfp4"],
)
def test_quantised_m3_computes_what_its_weights_mean(
    experts: Callable[[Tensor], Written] | None, tmp_path: Path
) -> None:
    """experts: how theirs are written; None: as the others."""
    base = fp8((1, 32), name="weight_scale_inv", power=True, exponents=True)
    family, settings = CASES["minimax-m3"]
    theirs = make_theirs(family, settings | WIDE)
    folder, twin = tmp_path / "model", tmp_path / "twin.safetensors"
    tensors, plain, changed = {}, {}, []
    for whole_name, whole in theirs.state_dict().items():
        for name, weight in of_release(whole_name, whole):
            if PLAIN.search(name):
                tensors[name] = plain[name] = weight
                continue
            write = experts if experts is not None and ".experts." in name else base
            parts, plain[name] = write(weight.float())
            module = name.removesuffix(".weight")
            tensors |= {f"{module}.{part}": each.contiguous() for part, each in parts.items()}
            changed.append(module)
    # Of 3 layers: 4 of attention; of the first also 3; of the others 2 of the index, 6 experts and
    # a shared one.
    assert len(changed) == 3 * 4 + 3 + 2 * (2 + 3 * 7)
    config = config_of(theirs)
    config["quantization_config"] = MXFP8 if experts is None else mixed(changed)
    write_hub_folder(folder, config=config)
    save_file({name: each.clone() for name, each in plain.items()}, twin)
    save_file({name: each.clone() for name, each in tensors.items()}, folder / "model.safetensors")
    prepared = load_manifest(prepare(str(folder), cache_dir=str(tmp_path / "cache")))
    prompt = random_prompts()[7]
    meant = logits_as_meant(prepared, twin, prompt)
    off = (logits_as_stored(prepared, prompt) - meant).norm(dim=-1) / meant.norm(dim=-1)
    assert 0 < off.median() < 0.01
