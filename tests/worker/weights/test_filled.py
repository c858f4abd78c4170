"""Matrices of values that are shorter than keys get zeros where the file has nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace

import gguf
import msgspec
import numpy as np
import pytest
import torch

from penstock.errors import UnsupportedModel
from penstock.model.attention_spec import AttentionSpec, KVHeadsSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import LayerSpec, RowFactors
from penstock_worker.adapters.adaptable import adaptable_modules
from penstock_worker.quantisation.checkpoints.matrix import CheckpointMatrix
from penstock_worker.weights.factors import multiply_rows
from penstock_worker.weights.filled import fill_values
from penstock_worker.weights.stored import CheckpointTensor, StoredTensor
from penstock_worker.weights.weights import Weights
from tests.worker.checkpoints import TINY
from tests.worker.weights.test_factors import stored

SIZE, SHORT, HIDDEN = TINY.head_dim, TINY.head_dim - 5, TINY.hidden_size
OWN = KVHeadsSpec(count=TINY.num_heads, size=SIZE)
VALUE, OUTPUT = "layers.0.self_attn.v_proj.weight", "layers.0.self_attn.o_proj.weight"


def config(own: KVHeadsSpec | None = None, scale: float = 1.0) -> ModelConfig:
    heads = TINY.num_kv_heads if own is None else own.count
    factors = RowFactors(module="self_attn.v_proj", parts=((heads * SHORT, scale),))
    layer = LayerSpec(
        attention=AttentionSpec(value_size=SHORT, kv_heads=own),
        weight_factors=() if scale == 1.0 else (factors,),
    )
    return msgspec.structs.replace(TINY, layers=(layer,), num_layers=1)


@dataclass(frozen=True)
class Decoded(CheckpointMatrix):
    """A quantised matrix that is decoded already."""

    numbers: torch.Tensor

    def row_range(self, rows: range) -> Decoded:
        part = self.numbers[rows.start : rows.stop]
        return replace(self, outputs=len(rows), numbers=part)

    def values(self, rows: range, columns: range) -> torch.Tensor:
        return self.numbers[rows.start : rows.stop, columns.start : columns.stop]


def as_quantised(numbers: torch.Tensor, name: str) -> CheckpointTensor:
    rows, columns = numbers.shape
    return CheckpointTensor.of(Decoded(name, rows, columns, "int8", numbers.float()), name)


@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize("own", [None, OWN])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_zeros_stand_behind_each_heads_values(
    dtype: torch.dtype, own: KVHeadsSpec | None, quantised: bool
) -> None:
    heads = TINY.num_kv_heads if own is None else own.count
    value = torch.randn(heads * SHORT, HIDDEN).to(dtype)
    output = torch.randn(HIDDEN, TINY.num_heads * SHORT).to(dtype)
    make = as_quantised if quantised else stored
    tensors: dict[str, StoredTensor] = {VALUE: make(value, "v"), OUTPUT: make(output, "o")}
    described = config(own, 0.7)
    multiply_rows(tensors, described)
    fill_values(tensors, described)
    true_value = torch.zeros(heads, SIZE, HIDDEN)
    true_value[:, :SHORT] = value.float().unflatten(0, (heads, SHORT)) * np.float32(0.7)
    true_output = torch.zeros(HIDDEN, TINY.num_heads, SIZE)
    true_output[:, :, :SHORT] = output.float().unflatten(1, (-1, SHORT))
    trues = {VALUE: true_value.flatten(0, 1), OUTPUT: true_output.flatten(1)}
    for name, true in trues.items():
        taken = Weights(tensors, torch.float32).take(name, true.shape)
        assert torch.equal(taken, true)
        # And a rank's part, which may begin within a head.
        count = len(true)
        for rows, columns in (
            (range(count // 2, count), range(3, 9)),
            (range(3, count - 2), range(SIZE - 3, SIZE)),
        ):
            out = torch.empty(len(rows), len(columns))
            tensors[name].read_part_into(out, (rows, columns))
            part = true[rows.start : rows.stop, columns.start : columns.stop]
            assert torch.equal(out, part)


def test_what_cannot_be_filled_up_is_refused() -> None:
    for tensor in (
        stored(torch.randn(TINY.num_kv_heads * SIZE, HIDDEN), "other.rows"),
        as_quantised(torch.randn(TINY.num_kv_heads * SHORT, HIDDEN)[1:], "fewer.rows"),
    ):
        with pytest.raises(UnsupportedModel, match=f"{tensor.name} has shape .* rows are expected"):
            fill_values({VALUE: tensor}, config())


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "BF16"])
def test_blocks_of_gguf_files_are_filled_up_and_multiplied(kind: str) -> None:
    value = torch.randn(TINY.num_kv_heads * SHORT, 64)
    numbers = getattr(gguf.GGMLQuantizationType, kind)
    data = gguf.quantize(value.numpy(), numbers)
    decoded = torch.from_numpy(gguf.dequantize(data, numbers))
    packed = StoredTensor("v", tuple(value.shape), kind, data.reshape(-1).view(np.uint8))
    tensors: dict[str, StoredTensor] = {VALUE: packed}
    described = config(scale=0.7)
    multiply_rows(tensors, described)
    fill_values(tensors, described)
    true = torch.zeros(TINY.num_kv_heads, SIZE, 64)
    true[:, :SHORT] = decoded.unflatten(0, (-1, SHORT)) * np.float32(0.7)
    taken = Weights(tensors, torch.float32).take(VALUE, true.flatten(0, 1).shape)
    assert torch.equal(taken, true.flatten(0, 1))


def test_such_layers_take_no_adapters() -> None:
    assert not adaptable_modules(config())
