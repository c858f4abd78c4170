"""Rows of matrices are multiplied by a model's own factors when they are read."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from penstock.errors import UnsupportedModel
from penstock.model.layer_spec import LayerSpec, RowFactors
from penstock_worker.adapters.adaptable import adaptable_modules
from penstock_worker.forward.cpu.recurrent_weights import UNCHANGING_EPS, UNCHANGING_WEIGHT
from penstock_worker.weights.factors import multiply_rows, with_unit_rows
from penstock_worker.weights.stored import StoredTensor
from penstock_worker.weights.weights import Weights
from tests.worker.checkpoints import TINY

CONFIG = msgspec.structs.replace(
    TINY,
    layers=(
        LayerSpec(
            weight_factors=(
                RowFactors(module="mlp.gate_proj", parts=((2, 0.5), (3, 3.0))),
                RowFactors(module="mlp.up_proj", parts=((5, 0.1),)),
            )
        ),
    ),
    num_layers=1,
)
FACTORS = torch.tensor([0.5, 0.5, 3.0, 3.0, 3.0])


def stored(values: torch.Tensor, name: str) -> StoredTensor:
    formats = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
    data = values.view(torch.uint8).numpy().reshape(-1)
    return StoredTensor(name, tuple(values.shape), formats[values.dtype], data)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_and_biases_are_multiplied(dtype: torch.dtype) -> None:
    gate = "layers.0.mlp.gate_proj"
    weight, bias = torch.randn(5, 7).to(dtype), torch.randn(5).to(dtype)
    tensors = {
        f"{gate}.weight": stored(weight, "weight"),
        f"{gate}.bias": stored(bias, "bias"),
        "layers.0.mlp.down_proj.weight": stored(weight, "down"),
    }
    multiply_rows(tensors, CONFIG)
    weights = Weights(tensors, torch.float32)
    taken = weights.take(f"{gate}.weight", (5, 7))
    assert torch.equal(taken, weight.float() * FACTORS[:, None])
    assert torch.equal(weights.take(f"{gate}.bias", (5,)), bias.float() * FACTORS)
    assert torch.equal(weights.take("layers.0.mlp.down_proj.weight", (5, 7)), weight.float())


def test_what_cannot_be_multiplied_is_refused() -> None:
    tensor = stored(torch.randn(4, 7), "other.rows")
    with pytest.raises(UnsupportedModel, match=f"{tensor.name} has shape .* 5 rows in one of"):
        multiply_rows({"layers.0.mlp.up_proj.weight": tensor}, CONFIG)


@pytest.mark.parametrize("kind", ["F32", "BF16", "Q8_0"])
def test_rows_get_length_one(kind: str) -> None:
    """In all parts that ranks read, and of quantised matrices, too."""
    values = torch.randn(6, 64)
    values[3] = 0
    tensor = stored(values if kind == "F32" else values.bfloat16(), "lm_head.weight")
    if kind == "Q8_0":
        blocks = quantize(values.numpy(), GGMLQuantizationType.Q8_0)
        tensor = StoredTensor("lm_head.weight", (6, 64), kind, blocks.reshape(-1))
    whole = torch.empty(6, 64)
    tensor.read_into(whole)
    true = whole / whole.norm(dim=1, keepdim=True).clamp(min=1e-12)
    unit, found = with_unit_rows(tensor), torch.empty(6, 64)
    unit.read_into(found)
    assert torch.allclose(found, true, rtol=1e-6, atol=1e-7)
    assert torch.equal(found[3], torch.zeros(64))
    for rows, columns in ((range(2, 5), range(64)), (range(6), range(32, 64))):
        part = torch.empty(len(rows), len(columns))
        unit.read_part_into(part, (rows, columns))
        assert torch.equal(part, found[rows.start : rows.stop, columns.start : columns.stop])
    with pytest.raises(UnsupportedModel, match="a matrix is expected"):
        with_unit_rows(stored(torch.randn(4), "lm_head.bias"))


def test_layers_with_factors_take_no_adapters() -> None:
    assert not adaptable_modules(CONFIG)
    assert adaptable_modules(TINY)


def test_a_norm_of_the_kernels_changes_no_bit() -> None:
    """As the CPU kernels compute Mamba 2 without a norm."""
    sizes = 2.0 ** np.arange(-40, 38, dtype=np.float64)
    x = np.concatenate((sizes * 1.2345, -sizes, [0.0])).astype(np.float32)
    square = np.float32(np.mean(np.square(x), dtype=np.float32))
    root = np.sqrt(square + np.float32(UNCHANGING_EPS))
    assert np.array_equal(x * (np.float32(1.0) / root) * np.float32(UNCHANGING_WEIGHT), x)
    assert np.array_equal(x / root * np.float32(UNCHANGING_WEIGHT), x)
