"""Damage to any tensor of a quantised module is an error that says so, or changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.formats.safetensors_file import SafetensorsTensor
from penstock.prepare.quantised import read_quantisation
from penstock_worker.quantisation.checkpoints.gather import gathered
from tests.worker.quantised_cases import CASES

NAMES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.float8_e4m3fn: "F8_E4M3",
}


def stored(name: str, tensor: Tensor) -> SafetensorsTensor:
    data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    return SafetensorsTensor(
        name=name, dtype=NAMES[tensor.dtype], shape=tuple(tensor.shape), data=data
    )


def damaged(tensor: Tensor) -> Iterator[Tensor | None]:
    yield None
    yield tensor[..., None]
    if tensor.dim():
        yield tensor[:0]
        yield tensor[None]
        yield tensor.reshape(-1)
    for axis in range(tensor.dim()):
        yield tensor.narrow(axis, 0, tensor.shape[axis] // 2)
        yield torch.cat((tensor, tensor), axis)
    yield tensor.view(torch.uint8) if tensor.dim() else tensor.int()
    yield tensor.float().to(torch.int16)
    if tensor.dtype in (torch.int32, torch.int64, torch.uint8, torch.float32):
        yield torch.full_like(tensor, 0)
        yield torch.full_like(tensor, 127)
    if tensor.dtype in (torch.int32, torch.int64):
        yield torch.full_like(tensor, -2)
        yield torch.full_like(tensor, 2**31 - 1)


def opened(case: str, parts: dict[str, Tensor]) -> Tensor:
    quantised = read_quantisation(Fields({"quantization_config": CASES[case].settings}, "c"))
    assert quantised is not None
    tensors = {f"m.{part}": stored(f"m.{part}", each) for part, each in parts.items()}
    found = gathered(tensors, quantised)
    if "m.weight" in found.plain:
        raise UnsupportedModel("read as it is, of a type that no model has")
    if "m.weight" not in found.matrices:
        raise UnsupportedModel("the model finds no weight")
    matrix = found.matrices["m.weight"]
    return matrix.values(range(matrix.outputs), range(matrix.inputs))


@pytest.mark.parametrize("case", [case for case in CASES if case != "AutoRound, mixed bits"])
def test_damage_never_gives_another_error(case: str) -> None:
    """Numbers may be others where numbers were changed; no other exception, no endless memory.
    Of mixed bits, a matrix by this name is one of floats."""
    weight = torch.randn(48, 64, generator=torch.Generator().manual_seed(1))
    parts, meant = CASES[case].writer(weight)
    assert torch.equal(opened(case, parts), meant)
    refused = 0
    for part, tensor in parts.items():
        for other in damaged(tensor):
            changed = {**parts, part: other} if other is not None else dict(parts)
            if other is None:
                del changed[part]
            try:
                assert opened(case, changed).numel() <= 4 * meant.numel()
            except UnsupportedModel:
                refused += 1
    assert refused > len(parts)
