"""What tests.quick_interpreter leaves out of Triton's interpreter changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime import interpreter

from penstock_kernels.triton.rowwise.rms_norm import rms_norm
from tests.interpreted_triton import DEVICE

pytestmark = pytest.mark.skipif(DEVICE.type != "cpu", reason="the kernels are compiled")


def test_the_language_is_its_own_again_after_a_launch() -> None:
    owners: tuple[Any, ...] = (tl, tl.core, tl.math, tl.tensor)
    before = [(owner, name, getattr(owner, name)) for owner in owners for name in dir(owner)]
    rms_norm(torch.ones(2, 8), torch.ones(8), 1e-5)  # calls tl.sum, which calls others
    for owner, name, member in before:
        assert getattr(owner, name) == member, name


@pytest.mark.parametrize("element", [tl.float32, tl.bfloat16, tl.int1, tl.pointer_type(tl.int8)])
def test_types_are_as_they_would_be(element: Any) -> None:
    one, again = (tl.block_type(element, [4, tl.constexpr(2)]) for _ in range(2))
    assert one == again
    assert (str(again), list(again.shape), again.numel) == (str(one), [4, 2], 8)
    assert again.element_ty is element
    bits = 64 if element.is_ptr() else max(8, element.primitive_bitwidth)
    held = interpreter._get_np_dtype(again)
    assert held == interpreter._get_np_dtype(element)
    assert held.itemsize * 8 == bits
    for _ in range(2):
        tile = tl.tensor(interpreter.TensorHandle(np.zeros((4, 2), held), element), again)
        assert (list(tile.shape), tile.numel, tile.dtype) == ([4, 2], 8, element)
