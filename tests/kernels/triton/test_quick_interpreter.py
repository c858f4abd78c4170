"""What tests.quick_interpreter leaves out of Triton's interpreter changes nothing."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.language import semantic
from triton.runtime import interpreter

from penstock_kernels.triton.rowwise.norms import rms_norm
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


def test_a_kernels_arguments_are_as_they_would_be() -> None:
    """Tensors by their address and dtype, numbers by their size; a second one of a kind, too."""
    convert = of_its_own("triton.runtime.untouched_interpreter", interpreter.__file__)
    tensors = [torch.zeros(3, dtype=of)[1:] for of in (torch.float32, torch.bfloat16, torch.int64)]
    numbers = [0, 1, 7, -(2**31), 2**31 - 1, 2**31, 2**33, 0.5]
    for argument in [*tensors, *numbers] * 2:
        one, own = interpreter._implicit_cvt(argument), convert._implicit_cvt(argument)
        if not isinstance(own, tl.tensor):
            assert one is own is argument
            continue
        assert str(one.type) == str(own.type)
        assert one.handle.data.dtype == own.handle.data.dtype
        assert one.handle.data.tolist() == own.handle.data.tolist()


def test_what_is_left_out_of_a_call_is_its_default() -> None:
    def kernel(x: int, y: int, z: int = 3) -> None:
        pass

    def bound(*args: int, **kwargs: int) -> Any:
        return interpreter.inspect.getcallargs(kernel, *args, **kwargs)

    assert bound(1, 2) == bound(1, y=2) == bound(y=2, x=1, z=3) == {"x": 1, "y": 2, "z": 3}
    with pytest.raises(TypeError, match="missing"):
        bound(1)
    with pytest.raises(TypeError, match="multiple values"):
        bound(1, 2, x=1)


def test_bfloat16_is_the_upper_half_of_float32() -> None:
    """The interpreter has it so, but for numbers so small that it loses them."""
    own = of_its_own("triton.runtime.untouched_interpreter", interpreter.__file__)
    halves = np.arange(1 << 16, dtype=np.uint16)
    halves = halves[((halves >> 7) & 255 > 0) | (halves & 127 == 0)].reshape(2, -1)
    floats = np.random.default_rng(1).normal(scale=100, size=(40, 9)).astype(np.float32)
    floats[0] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e38, -1e-30, 3.0, 1 + 2**-8]
    for numbers, source, target in (
        (halves, tl.bfloat16, tl.float32),
        (floats, tl.float32, tl.bfloat16),
        (floats[:, ::2].T, tl.float32, tl.bfloat16),
    ):
        found = interpreter._convert_float(numbers, source, target, None)
        expected = own._convert_float(numbers, source, target, None)
        assert found.dtype == expected.dtype
        assert np.array_equal(found, expected)


def of_its_own(name: str, file: str) -> Any:
    """A module as its file has it, once more."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module


@pytest.fixture
def untouched() -> Iterator[Any]:
    """The semantic as Triton has it, of the same interpreter, which is in a launch."""
    module = of_its_own("triton.language.untouched_semantic", semantic.__file__)
    launch = interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    yield module.TritonSemantic(interpreter.interpreter_builder)
    launch.restore()


OPERATIONS = {
    "add": (True,),
    "sub": (True,),
    "mul": (True,),
    "truediv": (),
    "floordiv": (),
    "mod": (),
    "and_": (),
    "shl": (),
    "less_than": (),
    "equal": (),
    "minimum": (tl.PropagateNan.NONE,),
}
"""Each with what it takes beside two operands."""
TYPES = [tl.int1, tl.uint8, tl.int32, tl.int64, tl.float16, tl.bfloat16, tl.float32]
NUMBERS = [
    0,
    3,
    -1,
    True,
    0.5,
    0.0,
    -0.0,
    2**31,
    2**33,
    float("inf"),
    float("nan"),
    tl.constexpr(2),
]


def operands() -> list[Any]:
    pointers = tl.tensor(
        interpreter.TensorHandle(np.full((4, 2), 64, np.uint64), tl.pointer_type(tl.float32)),
        tl.block_type(tl.pointer_type(tl.float32), [4, 2]),
    )
    return [
        *(tile(of, shape) for of in TYPES for shape in ((4, 2), (1, 2), (2,), ())),
        tile(tl.int32, (2, 2)),
        pointers,
        *NUMBERS,
    ]


def tile(of: Any, shape: tuple[int, ...]) -> Any:
    held = interpreter._get_np_dtype(of)
    data = (np.arange(np.prod(shape, dtype=int)) % 2 + 1).astype(held).reshape(shape or (1,))
    return tl.tensor(
        interpreter.TensorHandle(data, of), tl.block_type(of, list(shape)) if shape else of
    )


def outcome(of: Any, operation: str, left: Any, right: Any) -> tuple[object, ...]:
    try:
        with np.errstate(all="ignore"):
            found = getattr(of, operation)(left, right, *OPERATIONS[operation])
    except Exception as error:
        return (type(error).__name__, str(error))
    data = found.handle.data
    return (str(found.type), str(found.handle.dtype), data.dtype, data.shape, data.tobytes())


@pytest.mark.parametrize("operation", OPERATIONS)
def test_operands_are_matched_as_they_would_be(untouched: Any, operation: str) -> None:
    """Each two types, shapes and numbers are matched; the second time, numbers' tiles are known."""
    ours = interpreter.interpreter_semantic
    assert (
        type(ours).binary_op_type_checking_impl is not type(untouched).binary_op_type_checking_impl
    )
    for left, right in itertools.product(operands(), repeat=2):
        if not (isinstance(left, tl.tensor) or isinstance(right, tl.tensor)):
            continue
        wanted = outcome(untouched, operation, left, right)
        assert outcome(ours, operation, left, right) == wanted, (left, right)
        assert outcome(ours, operation, left, right) == wanted, (left, right)


def test_a_cast_is_what_it_would_be(untouched: Any) -> None:
    for source, target in itertools.product(TYPES, repeat=2):
        for shape in ((4, 2), ()):
            made, wanted = (
                each.cast(tile(source, shape), target)
                for each in (interpreter.interpreter_semantic, untouched)
            )
            assert made.type == wanted.type
            assert made.handle.data.tobytes() == wanted.handle.data.tobytes()
