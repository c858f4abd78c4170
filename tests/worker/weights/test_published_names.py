"""Checkpoints as people publish them: saved with something around the model, with tensors that
the model has no place for, or with a head beside an embedding that it is said to share."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file, save_model
from torch import Tensor
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from penstock.errors import UnsupportedModel
from penstock.model.config import ModelConfig
from penstock.model.prepared_model import WeightFiles
from penstock.model.rope_spec import RopeScaling, RopeSpec
from penstock.prepare import load_manifest, prepare
from penstock_worker.layers.rotary import Rotary
from penstock_worker.pooling.encoder.names import encoder_name
from penstock_worker.weights.names import ROPE_FACTORS
from penstock_worker.weights.opening import open_weights
from penstock_worker.weights.stored import StoredTensor
from penstock_worker.weights.weights import Weights
from testing.tiny_models import byte_level_tokenizer
from tests.worker.checkpoints import TINY, load_model, prepared_model, tiny_tensors
from tests.worker.models.parity import compare

pytestmark = pytest.mark.timeout(240)

Q_BIAS = "model.layers.0.self_attn.q_proj.bias"


def files_of(folder: Path, tensors: dict[str, Tensor]) -> WeightFiles:
    path = folder / "model.safetensors"
    save_file({name: each.contiguous() for name, each in tensors.items()}, path)
    return WeightFiles(format="safetensors", files=(str(path),), dtype="float32")


WRAPPED: dict[str, Callable[[str], str]] = {
    "PEFT": lambda name: f"base_model.model.{name}",
    "PEFT around a bare decoder": lambda name: f"base_model.model.{name.removeprefix('model.')}",
    "DistributedDataParallel": lambda name: f"module.{name}",
    "torch.compile": lambda name: f"_orig_mod.{name}",
    "torch.compile in DDP": lambda name: f"module._orig_mod.{name}",
    "compiled layers": lambda name: name.replace(".mlp.", "._orig_mod.mlp."),
    "FSDP": lambda name: name.replace(".self_attn.", "._fsdp_wrapped_module.self_attn."),
    "checkpointing": lambda name: name.replace(".mlp.", "._checkpoint_wrapped_module.mlp."),
    "a wrapper's own model": lambda name: f"model.{name}" if "model." in name else name,
    "nothing": lambda name: name.removeprefix("model."),
}


@pytest.mark.parametrize("case", WRAPPED)
def test_what_a_model_was_wrapped_in_is_left_out(tmp_path: Path, case: str) -> None:
    plain = tiny_tensors(TINY)
    files = files_of(tmp_path, {WRAPPED[case](name): each for name, each in plain.items()})
    weights = open_weights(files, TINY, torch.float32)
    for name, tensor in plain.items():
        assert torch.equal(weights.take(name.removeprefix("model."), tensor.shape), tensor)
    load_model(TINY, files, torch.float32)  # nothing is left over


def test_one_tensor_under_two_names_is_refused(tmp_path: Path) -> None:
    plain = tiny_tensors(TINY)
    twice = plain | {"base_model.model.model.norm.weight": torch.zeros(60)}
    with pytest.raises(UnsupportedModel, match=r"model\.norm\.weight is there twice"):
        open_weights(files_of(tmp_path, twice), TINY, torch.float32)


@pytest.mark.parametrize("part", ["base_layer.weight", "lora_A.default.weight"])
def test_an_adapter_that_is_not_merged_is_refused(tmp_path: Path, part: str) -> None:
    """OpenGVLab/InternVL issue 548: the result of a merge that didn't happen."""
    name = f"language_model.base_model.model.model.layers.0.self_attn.q_proj.{part}"
    files = files_of(tmp_path, tiny_tensors(TINY) | {name: torch.zeros(120, 60)})
    with pytest.raises(UnsupportedModel, match=r"isn't merged.*merge_and_unload"):
        open_weights(files, TINY, torch.float32)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        (Q_BIAS, torch.zeros(120)),
        (Q_BIAS, -torch.zeros(120, dtype=torch.bfloat16)),
        ("model.layers.1.mlp.adapter.weight", torch.zeros(4, 60)),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", torch.ones(12)),
        ("model.layers.0.self_attn.rotary_emb.cos_cached", torch.ones(1, 1, 9, 24)),
        ("model.layers.0.attn.masked_bias", torch.tensor(-1e4)),
    ],
)
def test_tensors_that_change_nothing_are_passed_over(
    tmp_path: Path, name: str, values: Tensor, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        load_model(TINY, files_of(tmp_path, tiny_tensors(TINY) | {name: values}), torch.float32)
    said = [line.__dict__ for line in caplog.records if "tensors of zeros" in line.getMessage()]
    assert len(said) == (not values.any())
    assert all(name in str(line) for line in said)


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        (Q_BIAS, torch.linspace(0, -0.25, 120), r"q_proj\.bias \(values up to 0\.25\)$"),
        ("model.layers.1.mlp.adapter.weight", torch.eye(4, 60), r"mlp\.adapter\.weight$"),
        ("model.layers.1.mlp.norm.weight", torch.zeros(60), r"mlp\.norm\.weight$"),
    ],
)
def test_tensors_that_may_change_something_are_refused(
    tmp_path: Path, name: str, values: Tensor, said: str
) -> None:
    """A norm's weight of zeros isn't nothing: some families add one to it."""
    zero = {"model.layers.1.self_attn.k_proj.bias": torch.zeros(24)}
    files = files_of(tmp_path, tiny_tensors(TINY) | zero | {name: values})
    with pytest.raises(UnsupportedModel, match=f"has 1 tensors.*{said}"):
        load_model(TINY, files, torch.float32)


def test_a_part_of_zeros_excuses_no_other_part_of_its_tensor() -> None:
    values = np.array([1, 2, 0, 0, 5, 6], np.float32).view(np.uint8)
    fused = StoredTensor("h.0.qkv.bias", (6,), "F32", values)
    parts = {
        f"{part}.bias": fused.row_range(range(2 * n, 2 * n + 2)) for n, part in enumerate("qkv")
    }
    with pytest.raises(UnsupportedModel, match=r"has 2 tensors.*up to 2.*up to 6"):
        Weights(parts, torch.float32).finish()


def test_old_names_of_norms(tmp_path: Path) -> None:
    """Those of checkpoints that came from TensorFlow, which transformers renames, too."""
    torch.manual_seed(3)
    sizes = {"hidden_size": 12, "num_attention_heads": 2, "num_hidden_layers": 1}
    model = BertModel(BertConfig(**sizes, vocab_size=40, intermediate_size=20))
    model.save_pretrained(tmp_path)
    new = model.state_dict()
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): torch.randn_like(tensor)
        for name, tensor in new.items()
    }
    files_of(tmp_path, {f"bert.{name}": tensor for name, tensor in old.items()})
    theirs = BertModel.from_pretrained(tmp_path).state_dict()
    ours = {encoder_name(f"bert.{name}"): tensor for name, tensor in old.items()}
    assert theirs.keys() == new.keys()
    assert ours.keys() == {encoder_name(name) for name in theirs}
    assert all(torch.equal(ours[encoder_name(name)], theirs[name]) for name in theirs)


# A head beside an embedding that it is said to share.


def tied_model() -> LlamaForCausalLM:
    torch.manual_seed(5)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 700}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(**sizes, **heads, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2)
    model = LlamaForCausalLM(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


HEADS: dict[str, Callable[[Tensor], Tensor]] = {
    "equal": lambda embedding: embedding.clone(),
    "another": lambda embedding: embedding.flip(0),
    "another in its last number": lambda embedding: (
        embedding + embedding.new_zeros(embedding.shape).index_fill(0, torch.tensor([699]), 0.5)
    ),
}


@pytest.mark.parametrize("case", HEADS)
def test_a_head_beside_tied_embeddings_is_used_where_it_differs(tmp_path: Path, case: str) -> None:
    """vLLM pull request 3344: Qwen1.5-0.5B-Chat has a head that equals its embedding. NVIDIA-NeMo/
    Automodel pull request 2511: heads that were trained on, while config.json calls them tied."""
    folder = tmp_path / "model"
    model = tied_model()
    model.save_pretrained(folder)
    byte_level_tokenizer().save(str(folder / "tokenizer.json"))
    tensors = dict(model.state_dict().items())
    tensors["lm_head.weight"] = HEADS[case](model.get_input_embeddings().weight.detach())
    files_of(folder, tensors)
    prepared = load_manifest(prepare(str(folder), cache_dir=str(tmp_path / "cache")))
    assert isinstance(prepared.config, ModelConfig)
    assert prepared.config.tie_word_embeddings == (case == "equal")
    theirs = LlamaForCausalLM.from_pretrained(folder).eval()
    tokens = [(number * 17) % 700 for number in range(40)]
    assert compare(prepared_model(prepared, torch.float32), theirs, [tokens], 16) > 0


def test_a_head_without_its_embedding_is_both(tmp_path: Path) -> None:
    """transformers issue 38870: safetensors' save_model keeps one name of two tensors that share
    memory, here the head's."""
    folder = tmp_path / "model"
    model = tied_model()
    model.save_pretrained(folder)
    byte_level_tokenizer().save(str(folder / "tokenizer.json"))
    save_model(model, str(folder / "model.safetensors"))
    prepared = load_manifest(prepare(str(folder), cache_dir=str(tmp_path / "cache")))
    weights = open_weights(prepared.weights, prepared.decoder, torch.float32)
    embedding = model.get_input_embeddings().weight
    assert torch.equal(weights.take("embed_tokens.weight", embedding.shape), embedding)


def test_llama_3_1s_frequencies_of_a_gguf_file(tmp_path: Path) -> None:
    """vllm-project/vllm issue 7268: files have `rope_freqs.weight`, and no word in their settings
    that positions are scaled. The tensor's values are what llama.cpp's converter writes."""
    settings = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    settings |= {"rope_theta": 5e5, "original_max_position_embeddings": 8192, "rope_type": "llama3"}
    divisors = []
    for pair in range(32):
        length = 2 * math.pi * 5e5 ** (2 * pair / 64)
        blend = (8192 / length - 1.0) / (4.0 - 1.0)
        divisors.append(1 / ((1 - blend) / 8.0 + blend) if 0 < blend < 1 else 8.0 ** (blend <= 0))
    data = np.array(divisors, np.float32).view(np.uint8)
    tensors = {ROPE_FACTORS: StoredTensor("rope_freqs.weight", (32,), "F32", data)}
    spec = RopeSpec(theta=5e5, dims=64, scaling=RopeScaling(kind="precomputed"))
    ours = Rotary.load(spec, Weights(tensors, torch.float32), 2048)
    config = LlamaConfig(head_dim=64, rope_parameters=settings)
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    angles = torch.arange(2048.0)[:, None] * frequencies
    torch.testing.assert_close(ours.cos, angles.cos(), atol=2e-4, rtol=0)
    torch.testing.assert_close(ours.sin, angles.sin(), atol=2e-4, rtol=0)
