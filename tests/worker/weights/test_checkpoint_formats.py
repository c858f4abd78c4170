"""Matrices of quantised checkpoints: what is read, what is packed, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from penstock.errors import UnsupportedModel
from penstock_kernels.cpu.matrix import MatrixKind, product
from penstock_kernels.cpu.memory import Arena
from penstock_worker.forward.cpu.packing import CheckpointPacking
from penstock_worker.parallel.place import RankPlace
from penstock_worker.parallel.shard import shard_of
from penstock_worker.weights.opening import open_weights
from penstock_worker.weights.stored import CheckpointTensor
from penstock_worker.weights.weights import Weights
from tests.worker.quantised_cases import CASES
from tests.worker.quantised_checkpoints import Checkpoint, write_checkpoint

QUERY, DOWN = "layers.1.self_attn.q_proj", "layers.1.mlp.down_proj"

KINDS = {
    "AWQ": "U4W",
    "AWQ, one group": "U4W",
    "GPTQ, first format": "U4W",
    "GPTQ, 8 bits": "U8W",
    "GPTQ, 2 bits": "U4H",
    "GPTQ, 3 bits": "U4W",
    "AutoRound": "U4H",
    "AutoRound as AWQ": "U4W",
    "AutoRound, mixed bits": "S8H",
    "GPTQ, act-order": "F32",
    "GPTQ, groups of 16": "F32",
    "W4A16": "U4H",
    "W4A16, asymmetric": "U4W",
    "W2A16": "U4H",
    "W3A16, asymmetric": "U4H",
    "W4A8": "U4H",
    "W4A16, act-order": "F32",
    "W8A16": "S8H",
    "W4A16 and W8A16": "S8H",
    "W8A16, wide scales": "S8W16",
    "INT8": "S8H",
    "INT8, asymmetric": "U8W",
    "INT8, per tensor": "S8W16",
    "FP8, per tensor": "F32",
    "FP8, per channel": "F32",
    "FP8, blocks": "F32",
    "FP8, blocks of powers": "BF16",
    "FP8 of fbgemm": "F32",
    "MXFP4": "F4W",
    "MXFP8": "BF16",
    "NVFP4": "F4B16",
    "NVFP4 of Model Optimizer": "F4B16",
    "NVFP4 in groups of 32, of Model Optimizer": "F4B16",
    "MXFP4 of Model Optimizer": "F4W",
    "MXFP8 of Model Optimizer": "BF16",
    "INT4 of Model Optimizer": "U4W",
    "AWQ of Model Optimizer, scaled inputs": "F32",
    "INT8 of Model Optimizer": "S8W16",
    "LLM.int8": "S8W16",
    "HQQ, 4 bits": "U4W",
    "HQQ, 8 bits": "U8W",
    "HQQ, 2 bits": "U4W",
    "BitNet": "U4H",
    "BitNet, as BitLinear": "U4W",
    "FP4, stored as NF4": "F32",
    "NF4": "F32",
    "NF4, scales quantised too": "F32",
}
"""What the CPU kernels hold."""


def opened(checkpoint: Checkpoint) -> Weights:
    prepared = checkpoint.prepared
    return open_weights(prepared.weights, prepared.decoder, torch.float32)


def tensor_of(weights: Weights, module: str, checkpoint: Checkpoint) -> CheckpointTensor:
    shape = checkpoint.meant[f"model.{module}.weight"].shape
    found = weights.stored(f"{module}.weight", tuple(shape))
    assert isinstance(found, CheckpointTensor)
    return found


@pytest.mark.parametrize("name", CASES)
def test_every_part_reads_what_the_weights_mean(name: str, tmp_path: Path) -> None:
    """Parts that begin and end within words, groups and blocks, as other ranks may have them."""
    checkpoint = write_checkpoint(tmp_path / "model", CASES[name])
    weights = opened(checkpoint)
    for module in (QUERY, DOWN):
        true = checkpoint.meant[f"model.{module}.weight"]
        stored, (outputs, inputs) = tensor_of(weights, module, checkpoint), true.shape
        for rows, columns in (
            (range(outputs), range(inputs)),
            (range(3, outputs - 2), range(inputs)),
            (range(outputs), range(5, 50)),
            (range(9, 10), range(33, 34)),
        ):
            out = torch.empty(len(rows), len(columns))
            stored.read_part_into(out, (rows, columns))
            here = true[rows.start : rows.stop, columns.start : columns.stop]
            assert torch.equal(out, here)


@pytest.mark.parametrize("name", CASES)
def test_rows_of_a_fused_matrix(name: str, tmp_path: Path) -> None:
    """Families cut fused projections so: what is cut off is a matrix of its own."""
    checkpoint = write_checkpoint(tmp_path / "model", CASES[name])
    true = checkpoint.meant[f"model.{QUERY}.weight"]
    stored = tensor_of(opened(checkpoint), QUERY, checkpoint)
    part = stored.row_range(range(5, 50)).row_range(range(4, 40))
    assert part.shape == (36, true.shape[1])
    out = torch.empty(part.shape)
    part.read_into(out)
    assert torch.equal(out, true[9:45])
    with pytest.raises(ValueError, match="another shape than its matrix"):
        replace(stored, shape=(36, true.shape[1]))


@pytest.mark.parametrize("name", ["AWQ", "INT8", "FP8, blocks", "NVFP4"])
def test_rows_in_another_order(name: str, tmp_path: Path) -> None:
    """Families with adjacent rotary pairs have them so."""
    checkpoint = write_checkpoint(tmp_path / "model", CASES[name])
    true = checkpoint.meant[f"model.{QUERY}.weight"]
    order = torch.randperm(len(true), generator=torch.Generator().manual_seed(2))
    plain = tensor_of(opened(checkpoint), QUERY, checkpoint)
    stored = replace(plain, rearrange=lambda rows: rows[order.numpy()])
    for part in (range(len(true)), range(7, 30)):
        out = torch.empty(len(part), true.shape[1])
        stored.read_part_into(out, (part, range(true.shape[1])))
        assert torch.equal(out, true[order][part.start : part.stop])
    packing, x = CheckpointPacking(1, Arena()), np.ones((1, true.shape[1]), np.float32)
    ours = product(x, packing.pack(stored.quantised, order=stored.places()))
    same = product(x, packing.pack(plain.quantised))
    assert np.array_equal(ours, same[:, order.numpy()])


@pytest.mark.parametrize("name", KINDS)
def test_packed_weights_read_back(name: str, tmp_path: Path) -> None:
    """A row of 127 and zeros is exact as signed bytes: the product reads one weight of each
    output. It may differ by float32's rounding alone, of parts as large as the group's largest."""
    checkpoint = write_checkpoint(tmp_path / "model", CASES[name])
    stored = tensor_of(opened(checkpoint), DOWN, checkpoint)
    bias = np.arange(stored.shape[0], dtype=np.float32)
    packed = CheckpointPacking(1, Arena()).pack(stored.quantised, bias)
    assert MatrixKind(packed.struct.kind).name == KINDS[name]
    true = 127 * checkpoint.meant[f"model.{DOWN}.weight"].numpy()
    inputs = true.shape[1]
    read = product(127 * np.eye(inputs, dtype=np.float32), packed).T - bias[:, None]
    assert np.abs(read - true).max() <= 2**-20 * (np.abs(true).max() + bias.max())


def test_scales_of_a_byte_may_be_negative(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "model", CASES["NVFP4"])
    true = -checkpoint.meant[f"model.{DOWN}.weight"]
    checkpoint.change(put("weight_scale", lambda x: (x.view(torch.uint8) | 128).view(x.dtype)))
    stored = tensor_of(opened(checkpoint), DOWN, checkpoint)
    assert torch.equal(stored.quantised.values(range(64), range(96)), true)
    packed = CheckpointPacking(1, Arena()).pack(stored.quantised)
    read = product(np.eye(96, dtype=np.float32), packed).T
    assert np.abs(read - true.numpy()).max() <= 2**-20 * true.abs().max()


@pytest.mark.parametrize(
    "name", ["AWQ", "GPTQ, act-order", "W4A16, asymmetric", "FP8, blocks", "NVFP4"]
)
def test_parts_of_ranks_make_the_whole(name: str, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "model", CASES[name])
    config = checkpoint.config
    parts = [
        opened(checkpoint).cut_to(shard_of(config, RankPlace(2, 1, rank))) for rank in range(2)
    ]
    for module, axis in ((QUERY, 0), (DOWN, 1)):
        true = checkpoint.meant[f"model.{module}.weight"]
        pieces = [part.take(f"{module}.weight", tuple(true.shape)) for part in parts]
        assert all(piece.shape != true.shape for piece in pieces)
        assert torch.equal(torch.cat(pieces, axis), true)


Change = Callable[[dict[str, Tensor]], None]


def put(part: str, make: Callable[[Tensor], Tensor]) -> Change:
    def change(tensors: dict[str, Tensor]) -> None:
        name = f"model.{DOWN}.{part}"
        tensors[name] = make(tensors[name]).contiguous()

    return change


def drop(part: str) -> Change:
    def change(tensors: dict[str, Tensor]) -> None:
        del tensors[f"model.{DOWN}.{part}"]

    return change


def poisoned(value: float) -> Callable[[Tensor], Tensor]:
    def poison(scales: Tensor) -> Tensor:
        scales.view(-1)[-1] = value
        return scales

    return poison


BROKEN: dict[str, tuple[str, Change, str]] = {
    "no scales": ("AWQ", drop("scales"), "down_proj lacks its tensor scales"),
    "short scales": (
        "AWQ", put("scales", lambda x: x[:-1]), r"of other shapes than .*scales F16 \(2, 64\)"),
    "wide zero points": (
        "AWQ", put("qzeros", lambda x: torch.cat((x, x), 1)), r"qzeros I32 \(3, 16\)"),
    "levels of other sizes": ("AWQ", put("qweight", lambda x: x[:64]), r"qweight I32 \(64, 8\)"),
    "short scales of GPTQ": (
        "GPTQ, 2 bits", put("scales", lambda x: x[:-1]), r"scales F16 \(2, 64\).*bits=2"),
    "levels of another type": ("AWQ", put("qweight", lambda x: x.short()), "is of type I16; I32"),
    "levels of three dimensions": ("AWQ", put("qweight", lambda x: x[None]), "a matrix is needed"),
    "NaN among scales": ("AWQ", put("scales", poisoned(float("nan"))), "scale that isn't finite"),
    "infinite scale": ("W8A16", put("weight_scale", poisoned(float("inf"))), "isn't finite"),
    "NaN among blocks' scales": (
        "FP8, blocks", put("weight_scale_inv", poisoned(float("nan"))), "isn't finite"),
    "NaN among weights": (
        "FP8, per tensor", put("weight", lambda x: x.view(torch.uint8).fill_(127).view(x.dtype)),
        "down_proj has a weight that isn't a number"),
    "a group that isn't there": (
        "GPTQ, act-order", put("g_idx", lambda x: x + 1), "groups 1 to 3 in g_idx; 0 to 2 exist"),
    "a negative group": ("GPTQ, act-order", put("g_idx", lambda x: x - 1), "groups -1 to 1"),
    "act-order without groups": ("GPTQ, act-order", drop("g_idx"), "lacks its tensor g_idx"),
    "another shape than it says": (
        "W4A16", put("weight_shape", lambda x: x * 2), "says that it is 128 x 192"),
    "another number of bits": (
        "W4A16", put("weight_packed", lambda x: torch.cat((x, x), 1)),
        "other shapes than its quantization_config says: .*known are .*bits=4, group_size=32"),
    "zero points where there are none": (
        "W4A16", lambda tensors: tensors.update(
            {f"model.{DOWN}.weight_zero_point": torch.zeros(8, 3, dtype=torch.int32)}),
        "other shapes than its quantization_config says"),
    "blocks of another size": (
        "FP8, blocks", put("weight_scale_inv", lambda x: x[:1]), "other shapes"),
    "NaN among scales of a byte": (
        "NVFP4", put("weight_scale", lambda x: x.view(torch.uint8).fill_(127).view(x.dtype)),
        "scale that isn't finite"),
    "factors of too few inputs": (
        "AWQ of Model Optimizer, scaled inputs", put("pre_quant_scale", lambda x: x[1:]),
        r"pre_quant_scale has shape \(95,\); \(96,\) is needed"),
    "an endless factor": (
        "AWQ of Model Optimizer, scaled inputs", put("pre_quant_scale", poisoned(float("inf"))),
        "scale that isn't finite"),
    "groups of another size": (
        "INT4 of Model Optimizer", put("weight_scale", lambda x: x[:, :1]), "of other shapes"),
    "a factor of 0": ("NVFP4", put("weight_global_scale", lambda x: x * 0), "one positive number"),
    "no shape in its state": (
        "NF4", put("weight.quant_state.bitsandbytes__nf4", lambda x: x[:20]), "can't be read"),
    "levels of more bits": (
        "W4A8", put("weight", lambda x: x + 1), "down_proj has weights of more than 4 bits"),
    "too few bytes": ("NF4", put("weight", lambda x: x[1:]), "bytes than 64 x 96 weights need"),
    "another order of INT8": (
        "LLM.int8", put("weight_format", lambda x: x + 1), "a weight_format other than rows"),
    "quantised scales of HQQ": (
        "HQQ, 4 bits", put("quant_scale", lambda x: x + 1), r"quantised scales .*\(quant_scale\)"),
    "an endless zero point": (
        "HQQ, 4 bits", put("zero", poisoned(float("inf"))), "zero point that isn't finite"),
    "HQQ without inputs": (
        "HQQ, 4 bits", put("shape", lambda x: x * torch.tensor([1, 0])), "says that it is .* x 0"),
    "groups of HQQ of another size": (
        "HQQ, 4 bits", put("scale", lambda x: x[1:]), "of other shapes than .*storage='hqq'"),
    "a fourth value of BitNet's": (
        "BitNet", put("weight", lambda x: x | 3), "down_proj has weights other than -1, 0 and 1"),
    "an endless scale of BitNet's": (
        "BitNet", put("weight_scale", poisoned(float("inf"))), "scale inf; a positive number"),
    "no scale of BitNet's": (
        "BitNet, as BitLinear", put("weight_scale", lambda x: x * 0), "scale 0.0; a positive"),
    "a scale of each output of BitNet's": (
        "BitNet", put("weight_scale", lambda x: x.repeat(64)), r"shape \(64,\); \(1,\) is needed"),
    "a listed module": (
        "W4A16", lambda tensors: tensors.update(
            {name.replace(f"model.{DOWN}", "lm_head"): each.clone()
             for name, each in tensors.items() if DOWN in name}),
        "lm_head is listed by the configuration as one that isn't quantised"),
    "numbers without a meaning": (
        "W4A16", lambda tensors: tensors.update(
            {"lm_head.weight": torch.zeros(700, 64, dtype=torch.int8)}),
        "lm_head.weight is of type I8, which a checkpoint of compressed-tensors int4"),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_broken_modules_are_named(what: str, tmp_path: Path) -> None:
    case, change, message = BROKEN[what]
    checkpoint = write_checkpoint(tmp_path / "model", CASES[case])
    checkpoint.change(change)
    shape = tuple(checkpoint.meant[f"model.{DOWN}.weight"].shape)
    with pytest.raises(UnsupportedModel, match=message):
        opened(checkpoint).take(f"{DOWN}.weight", shape)


def test_zero_points_of_older_files_are_signed_bytes(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "model", CASES["W4A16, asymmetric"])
    true = checkpoint.meant[f"model.{DOWN}.weight"]

    def as_bytes(packed: Tensor) -> Tensor:
        rows = [(packed >> 4 * place & 15) - 8 for place in range(8)]
        return torch.stack(rows, 1).flatten(0, 1).to(torch.int8)

    checkpoint.change(put("weight_zero_point", as_bytes))
    assert torch.equal(opened(checkpoint).take(f"{DOWN}.weight", tuple(true.shape)), true)


def test_a_bias_of_zeros_is_no_extra_and_another_is(tmp_path: Path) -> None:
    from tests.worker.checkpoints import load_model

    checkpoint = write_checkpoint(tmp_path / "model", CASES["GPTQ, first format"])
    files = checkpoint.prepared.weights
    load_model(checkpoint.config, files, torch.float32)
    checkpoint.change(put("bias", lambda bias: bias + 1))
    with pytest.raises(UnsupportedModel, match=rf"doesn't use: model\.{DOWN}\.bias"):
        load_model(checkpoint.config, checkpoint.prepared.weights, torch.float32)
