"""Products with, and rows of, quantised GGUF weights, against float64 of what the file says."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from penstock_kernels.triton.linear.gguf_linear import gguf_linear
from penstock_kernels.triton.linear.gguf_rows import gguf_rows
from penstock_kernels.triton.linear.gguf_weights import GGUFWeights
from penstock_kernels.triton.linear.group_sums import GROUPS_EACH, group_sums
from penstock_kernels.triton.matmul_tiles import GGUF_FEW, GGUF_MANY, gguf_parts
from penstock_worker.quantisation.registry import FORMATS
from penstock_worker.weights.repacking import LAYOUTS, repacked
from penstock_worker.weights.stored import StoredTensor
from tests.worker.weights.test_weights import stored_bytes

pytestmark = pytest.mark.timeout(240)

ROUNDING = {torch.float32: 0.0, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def stored(kind: str, outputs: int, inputs: int) -> StoredTensor:
    return StoredTensor("x", (outputs, inputs), kind, stored_bytes(kind, outputs * inputs))


def kept(kind: str, outputs: int, inputs: int, device: torch.device) -> GGUFWeights:
    part = range(outputs), range(inputs)
    return repacked([(stored(kind, outputs, inputs), part)], device, Tensor.copy_)


@cache
def true(kind: str, outputs: int, inputs: int) -> Tensor:
    """float32, as ggml's own dequantisation has them (test_weights.py shows that)."""
    out = torch.empty(outputs, inputs)
    stored(kind, outputs, inputs).read_into(out)
    return out


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def check(ours: Tensor, x: Tensor, weight: Tensor, minima: float, bias: Tensor | None) -> None:
    """One rounding to the dtype, float32 sums, and, of a type with minima, float32 has rounded
    scale * level + minimum in `weight`."""
    wanted = x.double() @ weight.double().T
    size = x.double().abs() @ (weight.double().abs() + minima).T
    if bias is not None:
        wanted, size = wanted + bias.double(), size + bias.double().abs()
    far = (ours.cpu().double() - wanted).abs()
    assert (far <= wanted.abs() * ROUNDING[ours.dtype] + size * 1e-6).all(), far.max()


def test_which_types_are_kept() -> None:
    legacy = {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"}
    k_quants = {"Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"}
    grids = {"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"}
    ternary = {"TQ1_0", "TQ2_0", "Q1_0", "Q2_0"}
    tables = {"IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4"}
    assert set(LAYOUTS) == legacy | k_quants | tables | grids | ternary


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize(("rows", "outputs"), [(1, 70), (19, 3), (40, 65)])
def test_products_of_packed_blocks_equal_those_of_their_numbers(
    kind: str, rows: int, outputs: int, device: torch.device
) -> None:
    inputs = 96 if FORMATS[kind].elements == 32 else 256
    weight, there = true(kind, outputs, inputs), kept(kind, outputs, inputs, device)
    x, bias = drawn(1, rows, inputs).bfloat16(), drawn(2, outputs)
    largest = float(weight.abs().max()) if LAYOUTS[kind].minima else 0.0
    ours = gguf_linear(x.to(device), there, bias.to(device), dtype=torch.float32)
    check(ours, x, weight, largest, bias)
    rounded = gguf_linear(x.to(device), there)
    assert rounded.dtype == torch.bfloat16
    check(rounded, x, weight, largest, None)


@pytest.mark.parametrize("kind", [kind for kind in LAYOUTS if FORMATS[kind].elements == 32])
def test_a_matrix_of_one_block(kind: str, device: torch.device) -> None:
    x = drawn(1, 2, 32).bfloat16()
    ours = gguf_linear(x.to(device), kept(kind, 1, 32, device), dtype=torch.float32)
    weight = true(kind, 1, 32)
    check(ours, x, weight, float(weight.abs().max()), None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_other_activations(dtype: torch.dtype, device: torch.device) -> None:
    x, weight = drawn(1, 3, 64).to(dtype), true("Q8_0", 9, 64)
    ours = gguf_linear(x.to(device), kept("Q8_0", 9, 64, device))
    check(ours, x, weight, 0.0, None)


@pytest.mark.parametrize("bias", [False, True])
def test_sums_in_parts(bias: bool, device: torch.device) -> None:
    outputs, inputs = 9, 2080
    assert [gguf_parts(outputs, inputs) for inputs in (1023, 1024, 2080, 9999)] == [1, 2, 4, 8]
    assert gguf_parts(28672, 4096) == 2
    assert gguf_parts(128256, 4096) == 1
    x, weight = drawn(1, 2, inputs).bfloat16(), true("Q4_0", outputs, inputs)
    added = drawn(2, outputs) if bias else None
    ours = gguf_linear(
        x.to(device),
        kept("Q4_0", outputs, inputs, device),
        None if added is None else added.to(device),
    )
    check(ours, x, weight, 0.0, added)


def test_parts_that_begin_within_a_unit(device: torch.device) -> None:
    """Eight groups have one, and a part 18 groups, of which four are multiplied in a turn."""
    outputs, inputs = 5, 9 * 256
    assert gguf_parts(outputs, inputs) == 4
    x, weight = drawn(1, 2, inputs).bfloat16(), true("Q4_K", outputs, inputs)
    ours = gguf_linear(x.to(device), kept("Q4_K", outputs, inputs, device), dtype=torch.float32)
    check(ours, x, weight, float(weight.abs().max()), None)


@pytest.mark.parametrize("group", [16, 32])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_sums_of_groups(dtype: torch.dtype, group: int, device: torch.device) -> None:
    """Strided rows that don't fill their tiles, and more groups than a program goes through."""
    inputs = 32 * (2 * GROUPS_EACH + 1)
    x = drawn(1, 2 * GGUF_FEW.rows + 6, inputs + 8).to(dtype)[::2, :inputs]
    ours = group_sums(x.to(device), group, GGUF_FEW).cpu()
    assert ours.shape == (inputs // group, 2 * GGUF_FEW.rows)
    wanted = x.double().unflatten(1, (-1, group)).sum(-1).T
    assert (ours[:, : len(x)].double() - wanted).abs().max() < 1e-5
    assert not ours[:, len(x) :].any()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Q4_1", "Q6_K"])
def test_batch_invariant_rows_are_the_same_in_any_company(kind: str, device: torch.device) -> None:
    """No other tile and no other order of sums, however many rows there are."""
    inputs = 1024
    there = kept(kind, 9, inputs, device)
    x = drawn(1, GGUF_MANY.rows + 2, inputs).bfloat16().to(device)
    whole = gguf_linear(x, there, batch_invariant=True)
    for start, count in ((0, 1), (len(x) - 1, 1), (3, GGUF_FEW.rows), (1, 20)):
        part = gguf_linear(x[start : start + count], there, batch_invariant=True)
        assert torch.equal(part, whole[start : start + count]), (start, count)


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0"])
def test_many_rows(kind: str, device: torch.device) -> None:
    """Weights are not rounded there either."""
    x, weight = drawn(1, GGUF_MANY.rows + 3, 64).bfloat16(), true(kind, 67, 64)
    ours = gguf_linear(x.to(device), kept(kind, 67, 64, device), dtype=torch.float32)
    check(ours, x, weight, float(weight.abs().max()), None)


def test_strided_rows_and_none_at_all(device: torch.device) -> None:
    x, there = drawn(1, 6, 128).bfloat16().to(device), kept("Q4_0", 9, 64, device)
    assert torch.equal(
        gguf_linear(x[::2, :64], there), gguf_linear(x[::2, :64].contiguous(), there)
    )
    assert gguf_linear(x[:0, :64], there).shape == (0, 9)


@pytest.mark.parametrize("kind", LAYOUTS)
def test_rows_are_the_files(kind: str, device: torch.device) -> None:
    weight, there = true(kind, 21, 768), kept(kind, 21, 768, device)
    ids = torch.tensor([20, 0, 7, 7])
    assert torch.equal(gguf_rows(there, ids.to(device), torch.float32).cpu(), weight[ids])
    assert torch.equal(gguf_rows(there, None, torch.bfloat16).cpu(), weight.bfloat16())


@pytest.mark.parametrize("kind", LAYOUTS)
def test_no_more_bytes_than_in_the_file(kind: str, device: torch.device) -> None:
    """But for a little more: K-quants' scales of 4 or 6 bits take a byte each, levels of 2 or 3
    bits a nibble, and those that stand for IQ4's entries a byte. Vectors of a grid become a nibble
    or a byte for each value, with scales in float32, so that IQ1 to IQ3 grow."""
    there, file = kept(kind, 16, 512, device), stored(kind, 16, 512).data.nbytes
    small = {"Q2_K": 16 + 64, "Q3_K": 4 + 32, "Q4_K": 4, "Q5_K": 4}
    tables = {"IQ4_NL": 8 * 16, "IQ4_XS": 2 + 8 * 16}
    nibbles = {"IQ1_S": 142, "IQ3_S": 82, "TQ1_0": 90, "TQ2_0": 78, "Q1_0": 108, "Q2_0": 72}
    grids = {"IQ1_M": 264, "IQ2_XXS": 222, "IQ2_XS": 246, "IQ2_S": 238, "IQ3_XXS": 190}
    more = 16 * 2 * (small | tables | nibbles | grids).get(kind, 0)
    assert there.nbytes == file + more


@pytest.mark.parametrize("kind", LAYOUTS)
def test_parts_of_a_matrix(kind: str, device: torch.device) -> None:
    """Columns cut at groups, not at super-blocks; rows in the order that they are wanted in."""
    whole, weight = stored(kind, 12, 1024), true(kind, 12, 1024)
    turned = StoredTensor("x", whole.shape, kind, whole.data, lambda rows: rows[::-1])
    part = range(2, 11), range(96, 608)
    there = repacked([(whole, part), (turned, part)], device, Tensor.copy_)
    found = gguf_rows(there, torch.arange(18, device=device), torch.float32).cpu()
    assert torch.equal(found, torch.cat((weight, weight.flip(0)[0:12]))[part_rows()][:, 96:608])


def part_rows() -> np.ndarray:
    """2 to 10 of the first matrix and of the second."""
    return np.concatenate((np.arange(2, 11), np.arange(14, 23)))
