"""Adapters of the files' own names fit our modules: fused ones, GGUF's order of rows, and what PEFT
itself writes. What doesn't fit says why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock.adapters import UnfitAdapter, read_adapter
from penstock.formats.fields import Fields
from penstock.formats.weight_files import find_safetensors
from penstock.model.prepared_model import WeightFiles
from penstock.prepare.hub_config import read_config
from penstock_worker.adapters.fitting import fitted
from penstock_worker.adapters.models import adaptable_decoder
from tests.adapter_folders import Factors, random_factors, write_gguf, write_peft
from tests.worker.adapters.rig import SMALL, AdapterRig, Sequence_, factors_of
from tests.worker.cpu_model import CPUModel
from tests.worker.models.case_sizes import SIZES
from tests.worker.models.family_cases import CASES
from tests.worker.models.gguf_writing import adjacent
from tests.worker.models.test_parity_families import make_theirs

Q = "model.layers.0.self_attn.q_proj"
TOKENS = np.random.default_rng(1).integers(0, SIZES["vocab_size"], 40).tolist()


def rig_of(theirs: Any, folder: Path) -> AdapterRig:
    """The rig of a model that transformers made, in float32."""
    theirs.save_pretrained(folder)
    path = folder / "config.json"
    files = tuple(str(file) for file in find_safetensors(folder))
    stored = WeightFiles(format="safetensors", files=files, dtype="float32")
    config = read_config(Fields(json.loads(path.read_text()), str(path)))
    return AdapterRig(CPUModel(config, stored, "float32", positions=256))


def logprobs(theirs: Any) -> torch.Tensor:
    with torch.inference_mode():
        logits = theirs(torch.tensor([TOKENS])).logits[0]
    return logits.float().log_softmax(-1)


def linear_shapes(theirs: Any) -> dict[str, tuple[int, int]]:
    found = {}
    for name, module in theirs.named_modules():
        if name.endswith(("_proj",)) and isinstance(module, torch.nn.Linear):
            found[name] = (module.out_features, module.in_features)
    return found


def merge(theirs: Any, factors: Factors, scale: float) -> None:
    for name, (down, up) in factors.items():
        weight = theirs.get_submodule(name).weight
        added = torch.from_numpy(up).double() @ torch.from_numpy(down).double()
        with torch.no_grad():
            weight.copy_(weight.double() + scale * added)


@pytest.mark.parametrize("case", ["llama-7-7-llama3-rope", "phi3", "granite"])
def test_equals_transformers_with_the_adapter_merged_in(case: str, tmp_path: Path) -> None:
    theirs = make_theirs(*CASES[case])
    rig = rig_of(theirs, tmp_path / "model")
    factors = random_factors(linear_shapes(theirs), 6, 3)
    assert ("model.layers.0.self_attn.qkv_proj" in factors) == (case == "phi3")
    held = rig.hold(write_peft(tmp_path / "adapter", factors, alpha=9))
    (found,) = rig.logits([Sequence_(TOKENS, held)])
    before = logprobs(theirs)
    merge(theirs, factors, 9 / 6)
    after = logprobs(theirs)
    assert torch.allclose(found.log_softmax(-1), after, rtol=0, atol=1e-3)
    assert (before - after).abs().max() > 0.1


def test_what_peft_writes(tmp_path: Path) -> None:
    """sgl-project/sglang issue 40835, NVIDIA/TensorRT-LLM issue 1668: rsLoRA's scale was LoRA's."""
    import peft

    theirs = make_theirs(*CASES["phi3"])
    rig = rig_of(theirs, tmp_path / "model")
    wrapped = peft.get_peft_model(
        theirs,
        peft.LoraConfig(
            r=6,
            lora_alpha=11,
            target_modules="all-linear",
            use_rslora=True,
            rank_pattern={"down_proj": 3},
            alpha_pattern={"layers.0.self_attn.o_proj": 5},
        ),
    )
    for name, parameter in wrapped.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, 0, 0.1)
    wrapped.save_pretrained(tmp_path / "adapter")
    held = rig.hold(tmp_path / "adapter")
    (found,) = rig.logits([Sequence_(TOKENS, held)])
    merged = wrapped.merge_and_unload().eval()
    assert torch.allclose(found.log_softmax(-1), logprobs(merged), rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    "settings",
    [
        {"target_modules": ["embed_tokens", "lm_head", "q_proj"]},
        {"target_modules": ["v_proj"], "modules_to_save": ["embed_tokens", "lm_head"]},
        {"target_modules": "all-linear", "use_dora": True},
    ],
    ids=["embeddings", "whole", "dora"],
)
def test_what_else_peft_writes(tmp_path: Path, settings: dict[str, Any]) -> None:
    """vllm-project/vllm pull request 11714: embeddings and heads that were trained as a whole."""
    import peft

    theirs = make_theirs(*CASES["llama-7-7-llama3-rope"])
    rig = rig_of(theirs, tmp_path / "model")
    base = logprobs(theirs)
    wrapped = peft.get_peft_model(theirs, peft.LoraConfig(r=6, lora_alpha=11, **settings))
    for name, parameter in wrapped.named_parameters():
        trained = ("lora_B", "lora_embedding", "magnitude", "modules_to_save")
        if any(each in name for each in trained):
            with torch.no_grad():
                parameter += 0.1 * torch.randn(parameter.shape)
    wrapped.save_pretrained(tmp_path / "adapter")
    (found,) = rig.logits([Sequence_(TOKENS, rig.hold(tmp_path / "adapter"))])
    expected = logprobs(wrapped.eval())
    assert torch.allclose(found.log_softmax(-1), expected, rtol=0, atol=1e-3)
    assert (base - expected).abs().max() > 0.1


def test_a_gguf_adapter_is_the_same(tmp_path: Path) -> None:
    names = {"q_proj": "attn_q", "k_proj": "attn_k", "o_proj": "attn_output", "up_proj": "ffn_up"}
    theirs = factors_of(SMALL, 5, 1, tuple(names))
    in_gguf: Factors = {}
    for name, (down, up) in theirs.items():
        _, _, layer, _, module = name.split(".")
        heads = {"q_proj": SMALL.num_heads, "k_proj": SMALL.num_kv_heads}.get(module)
        if heads is not None:
            up = adjacent(torch.from_numpy(up), heads).numpy()
        in_gguf[f"blk.{layer}.{names[module]}"] = (down, np.ascontiguousarray(up))
    _, peft = read_adapter(write_peft(tmp_path / "a", theirs))
    _, gguf = read_adapter(write_gguf(tmp_path / "a.gguf", in_gguf))
    one, other = (fitted(each, adaptable_decoder(SMALL), 64) for each in (peft, gguf))
    assert one.keys() == other.keys()
    for name, module in one.items():
        outputs, inputs = module.up.shape[0], module.down.shape[1]
        pairs = zip(
            module.factors(range(outputs), range(inputs)),
            other[name].factors(range(outputs), range(inputs)),
            strict=True,
        )
        assert all(torch.equal(ours, theirs) for ours, theirs in pairs)


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        ({Q: (128, 95)}, "as a matrix of 128 by 95; the model's is 128 by 96"),
        (
            {Q.replace("0", "2"): (128, 96)},
            "supported in this model: embed_tokens, lm_head",
        ),
        ({"transformer.h.0.attn.c_attn": (128, 96)}, "changes transformer.h.0.attn.c_attn"),
        ({"model.vision_tower.q_proj": (128, 96)}, "which the model doesn't have"),
        ({"lm_head": (300, 96)}, "as a matrix of 300 by 96; the model's is 301 by 96"),
        ({"model.norm": (301, 96)}, "in this model: embed_tokens, lm_head"),
        ({Q: (128, 96), f"model.{Q}": (128, 96)}, "changes model.model"),
    ],
)
def test_what_does_not_fit(tmp_path: Path, shapes: dict[str, tuple[int, int]], said: str) -> None:
    _, adapter = read_adapter(write_peft(tmp_path / "a", random_factors(shapes, 4, 1)))
    with pytest.raises(UnfitAdapter, match=said):
        fitted(adapter, adaptable_decoder(SMALL), 64)


def test_too_high_a_rank_and_another_architecture(tmp_path: Path) -> None:
    _, adapter = read_adapter(write_peft(tmp_path / "a", factors_of(SMALL, 9, 1)))
    with pytest.raises(UnfitAdapter, match=r"rank 9; at most 8 is allowed \(max_lora_rank\)"):
        fitted(adapter, adaptable_decoder(SMALL), 8)
    factors = random_factors({"blk.0.attn_q": (128, 96)}, 4, 1)
    _, adapter = read_adapter(write_gguf(tmp_path / "a.gguf", factors, arch="gemma2"))
    with pytest.raises(UnfitAdapter, match="is for gemma2, but the model is llama"):
        fitted(adapter, adaptable_decoder(SMALL), 8)


def test_numbers_that_are_not_finite(tmp_path: Path) -> None:
    factors = factors_of(SMALL, 4, 1, ("q_proj",))
    factors[Q][1][3, 2] = np.inf
    _, adapter = read_adapter(write_peft(tmp_path / "a", factors))
    module = fitted(adapter, adaptable_decoder(SMALL), 8)["layers.0.self_attn.q_proj"]
    with pytest.raises(UnfitAdapter, match=r"q_proj\.lora_B\.weight holds numbers"):
        module.factors(range(128), range(96))
