"""Adapters of mixtures of experts: what PEFT computes with files of all forms; the same bits in any
company, over quantised weights and over ranks; and what can't be served says why."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock.adapters import UnfitAdapter, read_adapter
from penstock.formats.fields import Fields
from penstock.formats.weight_files import find_safetensors
from penstock.model.config import ModelConfig
from penstock.model.prepared_model import WeightFiles
from penstock.prepare.hub_config import read_config
from penstock_worker.adapters.adaptable import adaptable_modules, expert_modules
from penstock_worker.adapters.fitting import fitted
from penstock_worker.adapters.models import adaptable_decoder
from tests.adapter_folders import Factors, random_factors, write_gguf, write_peft
from tests.worker.adapters.rig import COMPUTED, AdapterRig, Sequence_, logits_of
from tests.worker.cpu_model import CPUModel
from tests.worker.models.case_sizes import SIZES
from tests.worker.models.family_cases import CASES, read
from tests.worker.models.test_parity_families import make_theirs

pytestmark = pytest.mark.timeout(120)
ALPHA = 7.0
TOKENS = np.random.default_rng(1).integers(1, SIZES["vocab_size"], 40).tolist()
FUSED = ["gate_up_proj", "down_proj"]
SAME_GROUP = {"llama4": {"attention_chunk_size": 4096}, "gpt-oss": {"sliding_window": 4096}}
"""So that layers are in one KV group."""


def made(case: str) -> Any:
    family, settings = CASES[case]
    return make_theirs(family, settings | SAME_GROUP.get(case, {}))


def saved(theirs: Any, folder: Path, **options: Any) -> CPUModel:
    theirs.save_pretrained(folder)
    path = folder / "config.json"
    files = tuple(str(file) for file in find_safetensors(folder))
    stored = WeightFiles(format="safetensors", files=files, dtype="float32")
    config = read_config(Fields(json.loads(path.read_text()), str(path)))
    return CPUModel(config, stored, **({"dtype": "float32", "positions": 256} | options))


def logprobs(theirs: Any) -> torch.Tensor:
    with torch.inference_mode():
        logits = theirs(torch.tensor([TOKENS])).logits[0]
    return logits.float().log_softmax(-1)


def compare(model: CPUModel, folder: Path, base: torch.Tensor, expected: torch.Tensor) -> None:
    """What a folder's adapter gives is what is expected, on both backends."""
    for backend in ("reference", "cpu"):
        rig = AdapterRig(replace(model, backend=backend), experts=True)
        (found,) = rig.logits([Sequence_(TOKENS, rig.hold(folder))])
        error = float((found.log_softmax(-1) - expected).abs().max())
        assert error < 1e-3
        assert (base - expected).abs().max() > max(0.1, 20 * error)


def peft_model(theirs: Any, **settings: Any) -> Any:
    import peft

    wrapped = peft.get_peft_model(theirs, peft.LoraConfig(lora_alpha=ALPHA, **settings))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.2, generator=generator)
    return wrapped.eval()


@pytest.mark.parametrize(
    ("case", "settings"),
    [
        ("mixtral", {}),
        ("qwen3-moe", {"use_rslora": True, "target_modules": ["q_proj"]}),
        ("qwen2-moe", {"rank_pattern": {"experts.down_proj": 5}}),
        ("gpt-oss", {"alpha_pattern": {"gate_up_proj": 3}}),
        ("llama4", {}),
        ("olmoe", {"target_parameters": ["experts.down_proj"]}),
        ("deepseek-v2-lite", {}),
        ("minimax-m2", {"target_parameters": ["experts.gate_up_proj"]}),
        (
            "nemotron-h-latents",
            {
                "target_parameters": ["experts.up_proj", "experts.down_proj"],
                "target_modules": ["fc1_latent_proj", "fc2_latent_proj"],
            },
        ),
    ],
)
def test_parameters_of_all_experts(case: str, settings: dict[str, Any], tmp_path: Path) -> None:
    """vllm-project/vllm issue 55545: the scale of rsLoRA, but for experts."""
    theirs = made(case)
    model, base = saved(theirs, tmp_path / "model"), logprobs(theirs)
    usual = {"r": 3, "target_parameters": [f"experts.{each}" for each in FUSED]}
    usual |= {"target_modules": []}
    wrapped = peft_model(theirs, **(usual | settings))
    wrapped.save_pretrained(tmp_path / "adapter")
    compare(model, tmp_path / "adapter", base, logprobs(wrapped))


def test_experts_of_their_own(tmp_path: Path) -> None:
    """They are as before transformers had all experts in one parameter."""
    import peft

    theirs = made("mixtral")
    model, base = saved(theirs, tmp_path / "model"), logprobs(theirs)
    hidden, inner = SIZES["hidden_size"], SIZES["intermediate_size"]
    shapes = {
        f"model.layers.{layer}.block_sparse_moe.experts.{expert}.{name}": shape
        for layer in range(3)
        for expert in range(5)
        for name, shape in {
            "w1": (inner, hidden),
            "w2": (hidden, inner),
            "w3": (inner, hidden),
        }.items()
    }
    folder = write_peft(tmp_path / "adapter", random_factors(shapes, 4, 2, 0.2), alpha=ALPHA)
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | {"lora_dropout": 0.0}))
    wrapped = peft.PeftModel.from_pretrained(theirs, folder).eval()
    expected = logprobs(wrapped)
    compare(model, folder, base, expected)
    # PEFT saves what it has converted in the new form.
    wrapped.save_pretrained(tmp_path / "again")
    compare(model, tmp_path / "again", base, expected)


def factors_of(
    config: ModelConfig, rank: int, seed: int, ends: tuple[str, ...] = ("",), size: float = 0.15
) -> Factors:
    """Factors of modules whose names end so, by the names that files have."""
    known = adaptable_modules(config) | expert_modules(config)
    shapes = {
        f"model.{name.replace('mlp.router', 'mlp.gate')}": shape
        for name, shape in known.items()
        if name.endswith(ends)
    }
    return random_factors(shapes, rank, seed, size)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> CPUModel:
    """With a router and an expert that every token has, behind a gate."""
    return saved(made("qwen2-moe"), tmp_path_factory.mktemp("model"))


def tokens_of(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, SIZES["vocab_size"], count).tolist()


@pytest.mark.parametrize(
    ("backend", "dtype", "quantization"),
    COMPUTED,
)
def test_bits_of_adapted_experts_are_the_same_alone_crowded_and_in_chunks(
    model: CPUModel, tmp_path: Path, backend: str, dtype: str, quantization: str
) -> None:
    rig = AdapterRig(
        replace(model, dtype=dtype, backend=backend, quantization=quantization), experts=True
    )
    held = []
    for number, rank in enumerate((4, 17, 40, 64)):
        # Not all change the same modules, nor the same experts.
        ends = [("",), ("experts.1.up_proj", "q_proj"), ("down_proj",), (".gate_proj", "router")]
        factors = factors_of(model.config, rank, number, ends[number])
        held.append(rig.hold(write_peft(tmp_path / str(number), factors, alpha=ALPHA)))
    counts = [1, 2, 3, 7, 13, 29, 40]
    crowd = [
        Sequence_(tokens_of(at, counts[at % len(counts)]), held[at % 4] if at % 5 else None)
        for at in range(20)
    ]
    alone = [rig.logits([each])[0] for each in crowd]
    for together in (rig.logits(crowd), rig.logits(crowd, chunk=5)):
        assert all(map(torch.equal, alone, together))
    forward = replace(rig.model, max_loras=0).forward(block_size=16, num_blocks=128, threads=2)
    for each, one in zip(crowd, alone, strict=True):
        (base,) = logits_of(forward, [Sequence_(each.tokens)])
        assert torch.equal(base, one) == (each.adapter is None)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_on_every_instruction_set(isa: str, model: CPUModel, tmp_path: Path, dtype: str) -> None:
    folder = write_peft(tmp_path / "a", factors_of(model.config, 33, 1, size=0.05), alpha=ALPHA)
    rig = AdapterRig(replace(model, dtype=dtype), experts=True)
    held = rig.hold(folder)
    crowd = [Sequence_(tokens_of(at, 3 + 5 * at), (held, None)[at % 2]) for at in range(6)]
    exact = AdapterRig(replace(model, backend="reference"), experts=True)
    theirs = exact.hold(folder)
    for at, (each, one) in enumerate(zip(crowd, rig.logits(crowd), strict=True)):
        assert torch.equal(rig.logits([each])[0], one)
        if dtype == "float32":
            (true,) = exact.logits([replace(each, adapter=(theirs, None)[at % 2])])
            assert torch.allclose(one, true, rtol=0, atol=1e-3)


def merge(
    theirs: Any, factors: Factors, lengths: dict[str, np.ndarray] | None, scale: float
) -> None:
    """Merges by hand, into parameters of all experts where the file has modules of each."""
    for name, (down, up) in factors.items():
        layer, _, module = name.partition(".mlp.")
        mlp, parts = theirs.get_submodule(f"{layer}.mlp"), module.split(".")
        if parts[0] != "experts":
            weight = mlp.get_submodule(module).weight.data
        elif parts[2] == "down_proj":
            weight = mlp.experts.down_proj.data[int(parts[1])]
        else:
            gate, up_ = mlp.experts.gate_up_proj.data[int(parts[1])].chunk(2)
            weight = gate if parts[2] == "gate_proj" else up_
        added = torch.from_numpy(up).double() @ torch.from_numpy(down).double()
        changed = weight.double() + scale * added
        if lengths is not None:
            wanted = torch.from_numpy(lengths[name]).double()
            changed *= (wanted / changed.norm(dim=1))[:, None]
        weight.copy_(changed)


@pytest.mark.parametrize("dora", [False, True], ids=["lora", "dora"])
def test_routers_and_experts_merged_in(tmp_path: Path, *, dora: bool) -> None:
    theirs = made("qwen2-moe")
    model, base = saved(theirs, tmp_path / "model"), logprobs(theirs)
    factors = {
        name: each
        for name, each in factors_of(model.config, 6, 1, size=0.08).items()
        if ".mlp." in name
    }
    assert len(factors) == len(expert_modules(model.config))
    lengths, random = None, np.random.default_rng(2)
    if dora:
        lengths = {
            name: random.uniform(1, 2, len(up)).astype(np.float32)
            for name, (_, up) in factors.items()
        }
    folder = write_peft(tmp_path / "a", factors, alpha=ALPHA, magnitudes=lengths)
    merge(theirs, factors, lengths, ALPHA / 6)
    compare(model, folder, base, logprobs(theirs))


def test_a_gguf_adapter_is_the_same(tmp_path: Path) -> None:
    config = read("qwen3-moe")
    ours, stacks = factors_of(config, 5, 1, ("experts.0.down_proj",)), {}
    for layer in (0, 2):
        for name in ("gate_proj", "down_proj"):
            each = factors_of(config, 5, layer, (name,))
            each = {key: pair for key, pair in each.items() if f"layers.{layer}.mlp.experts" in key}
            ours |= each
            stack = f"blk.{layer}.ffn_{name.removesuffix('_proj')}_exps"
            downs, ups = zip(*each.values(), strict=True)
            stacks[stack] = (np.stack(downs), np.stack(ups))
    _, peft = read_adapter(write_peft(tmp_path / "a", ours))
    _, gguf = read_adapter(write_gguf(tmp_path / "a.gguf", stacks, arch="qwen3moe"))
    known = adaptable_decoder(config, takes_experts=True)
    one, other = (fitted(each, known, 64) for each in (peft, gguf))
    assert one.keys() == other.keys()
    assert len(one) == 24
    for name, module in one.items():
        outputs, inputs = module.up.shape[0], module.down.shape[1]
        pairs = zip(
            module.factors(range(outputs), range(inputs)),
            other[name].factors(range(outputs), range(inputs)),
            strict=True,
        )
        assert all(torch.equal(ours, theirs) for ours, theirs in pairs)


def test_a_server_that_takes_none(model: CPUModel, tmp_path: Path) -> None:
    for name, factors in {
        "modules": factors_of(model.config, 4, 1, ("experts.3.up_proj",)),
        "router": factors_of(model.config, 4, 1, ("router",)),
    }.items():
        _, adapter = read_adapter(write_peft(tmp_path / name, factors))
        with pytest.raises(UnfitAdapter, match=r"that needs --lora-experts"):
            fitted(adapter, adaptable_decoder(model.config), 8)
    theirs = peft_model(made("qwen2-moe"), r=3, target_modules=[], target_parameters=FUSED)
    theirs.save_pretrained(tmp_path / "parameters")
    _, adapter = read_adapter(tmp_path / "parameters")
    with pytest.raises(UnfitAdapter, match=r"experts.down_proj, part of a mixture of experts"):
        fitted(adapter, adaptable_decoder(model.config), 8)
    with pytest.raises(UnfitAdapter, match="of 6 experts; the model has 5"):
        fitted(adapter, adaptable_decoder(read("mixtral"), takes_experts=True), 8)
    with pytest.raises(UnfitAdapter, match="as matrices of 96 by 40; the model's are 72 by 40"):
        fitted(adapter, adaptable_decoder(read("qwen3-moe"), takes_experts=True), 8)


def test_settings_that_do_not_say_which_parameters(tmp_path: Path) -> None:
    theirs = peft_model(made("mixtral"), r=3, target_modules=[], target_parameters=FUSED)
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "adapter_config.json"
    config = json.loads(path.read_text())
    for changed, said in (
        ({"target_parameters": None}, "target_parameters name 0 of gate_up_proj, up_proj"),
        ({"target_parameters": ["down_proj"]}, "has 2 pairs of factors for .*; its target"),
        ({"target_parameters": "down_proj"}, "target_parameters is not a list of at most"),
        ({"r": 4}, "has 15 rows; adapter_config.json says 4 for each expert"),
        ({"r": 5}, "of 3 experts; the model has 5"),
        ({"use_dora": True}, "gate_up_proj with DoRA, which is not supported"),
    ):
        path.write_text(json.dumps(config | changed))
        with pytest.raises(UnfitAdapter, match=said):
            fitted(read_adapter(tmp_path)[1], adaptable_decoder(read("mixtral")), 8)


def test_what_memory_they_take(model: CPUModel, tmp_path: Path) -> None:
    rank = 17
    rig = AdapterRig(
        replace(model, dtype="bfloat16"), rank=rank, whole_matrices=False, experts=True
    )
    factors = factors_of(model.config, rank, 1)
    lengths = {name: np.ones(len(up), np.float32) for name, (_, up) in factors.items()}
    held = rig.hold(write_peft(tmp_path, factors, magnitudes=lengths))
    assert rig.model.max_loras * held.nbytes <= rig.recipe.adapters.nbytes
    without = AdapterRig(replace(model, dtype="bfloat16"), rank=rank, whole_matrices=False)
    assert without.recipe.adapters.nbytes < rig.recipe.adapters.nbytes / 2
