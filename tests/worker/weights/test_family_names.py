"""Tensors of families' files, by our names."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from penstock.errors import UnsupportedModel
from penstock.families.tensor_names import TensorNames
from penstock.model.layer_spec import ExpertsSpec, FeedForwardSpec, LayerSpec
from penstock_worker.weights.family_names import by_our_names, in_file
from penstock_worker.weights.names import from_gguf, to_gguf
from penstock_worker.weights.stored import StoredTensor
from testing.model_configs import llama_config

CONFIG = llama_config(
    vocab_size=8,
    hidden_size=4,
    intermediate_size=3,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    max_position=16,
)
UP_DOWN = ("up", "down")


def stored(name: str, *shape: int) -> StoredTensor:
    values = np.arange(np.prod(shape), dtype=np.float32)
    return StoredTensor(name, shape, "F32", values.view(np.uint8))


def test_layers_behind_the_last_are_for_drafts() -> None:
    tensors = {
        name: stored(name, 4)
        for name in ("layers.1.input_layernorm.weight", "layers.2.enorm.weight", "norm.weight")
    }
    read = by_our_names(tensors, TensorNames(layers_for_drafts=True), CONFIG)
    assert sorted(read) == ["layers.1.input_layernorm.weight", "norm.weight"]
    assert len(by_our_names(tensors, TensorNames(), CONFIG)) == 3


def test_fused_rows_are_cut_in_their_order() -> None:
    names = TensorNames(fused={"mlp.both": ("mlp.gate_proj", "mlp.up_proj")})
    read = by_our_names({"layers.0.mlp.both.weight": stored("x", 6, 4)}, names, CONFIG)
    for number, name in enumerate(("gate_proj", "up_proj")):
        found = read[f"layers.0.mlp.{name}.weight"]
        assert found.shape == (3, 4)
        assert found.data.view(np.float32).tolist() == list(range(12 * number, 12 * number + 12))


ROWS = TensorNames(
    rows_of_experts={
        "ffn.v1": ("mlp.experts.*.up_proj",),
        "ffn.w2": ("mlp.experts.*.down_proj",),
    },
    rows_turned=frozenset({"ffn.w2"}),
)
OF_EXPERTS = replace(
    CONFIG,
    layers=(
        LayerSpec(feed_forward=FeedForwardSpec(experts=ExpertsSpec(count=2, active=1, inner=3))),
    ),
)


def test_rows_of_all_experts_become_a_matrix_each() -> None:
    tensors = {f"layers.1.ffn.{name}": stored(name, 6, 4) for name in ("v1", "w2")}
    read = by_our_names(tensors, ROWS, OF_EXPERTS)
    whole = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for expert in range(2):
        up, down = (read[f"layers.1.mlp.experts.{expert}.{each}_proj.weight"] for each in UP_DOWN)
        assert (up.shape, down.shape) == ((3, 4), (4, 3))
        assert up.content.view(np.float32).tolist() == whole[expert].ravel().tolist()
        assert down.content.view(np.float32).tolist() == whole[expert].T.ravel().tolist()
    assert in_file("layers.1.mlp.experts.1.up_proj.weight", ROWS) == "layers.1.ffn.v1"


@pytest.mark.parametrize("shape", [(7, 4), (24,), (2, 3, 4)])
def test_rows_that_are_not_all_experts_are_named(shape: tuple[int, ...]) -> None:
    with pytest.raises(UnsupportedModel, match=r"tensor x has shape .*; rows for 2 experts are"):
        by_our_names({"layers.0.ffn.w2": stored("x", *shape)}, ROWS, OF_EXPERTS)


def test_a_fused_tensor_of_another_height_is_named() -> None:
    names = TensorNames(fused={"mlp.both": ("mlp.gate_proj", "mlp.up_proj")})
    with pytest.raises(UnsupportedModel, match=r"tensor x has shape \(7, 4\); 3 \+ 3 rows"):
        by_our_names({"layers.0.mlp.both.weight": stored("x", 7, 4)}, names, CONFIG)


def test_what_becomes_one_name_twice_is_refused() -> None:
    tensors = {name: stored(name, 4) for name in ("a.weight", "b.weight")}
    with pytest.raises(UnsupportedModel, match=r"has the tensor b.weight twice"):
        by_our_names(tensors, TensorNames({"a": "b"}), CONFIG)


@pytest.mark.parametrize("shape", [(4,), (1, 4), (4, 1), (2, 2)])
def test_the_correction_of_a_router_is_a_row_in_some_families_alone(shape: tuple[int, ...]) -> None:
    """What isn't stays as it is, and is refused where it is taken."""
    name = "layers.0.mlp.router.correction"
    tensors = {name: stored(name, *shape)}
    assert by_our_names(tensors, TensorNames(), CONFIG)[name].shape == shape
    of_rows = by_our_names(tensors, TensorNames(correction_row=True), CONFIG)[name]
    assert of_rows.shape == (shape if shape == (2, 2) else (4,))


def test_names_lead_back() -> None:
    names = TensorNames(
        {"mlp.gate": "mlp.router", "a.weight": "b"},
        stacked={"mlp.stacked.up_proj": ("mlp.experts.*.up_proj",)},
        fused={"mlp.both": ("mlp.gate_proj", "mlp.up_proj")},
    )
    for ours, theirs in {
        "layers.1.mlp.router.weight": "layers.1.mlp.gate.weight",
        "layers.1.mlp.experts.7.up_proj.weight": "layers.1.mlp.stacked.up_proj.weight",
        "layers.0.mlp.up_proj.weight": "layers.0.mlp.both.weight",
        "layers.0.b": "layers.0.a.weight",
        "norm.weight": "norm.weight",
    }.items():
        assert in_file(ours, names) == theirs


@pytest.mark.parametrize(
    "name",
    [
        "token_embd.weight",
        "output_norm.weight",
        "output.weight",
        "blk.3.attn_q.weight",
        "blk.3.attn_q.bias",
        "blk.3.attn_norm.weight",
        "blk.3.exp_probs_b.bias",
        "blk.3.ffn_gate_inp.scale",
        "blk.3.ssm_a",
        "blk.3.ssm_dt.bias",
        "blk.11.nextn.eh_proj.weight",
        "blk.11.nextn.shared_head_norm.weight",
    ],
)
def test_names_of_gguf_lead_back(name: str) -> None:
    assert to_gguf(from_gguf(name)) == name
