"""What tests.quick_triton does in place of Triton's interpreter has the same bits, types and
errors: the first time, and for other numbers of the same kinds afterwards."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import triton.language as tl
from triton.runtime import interpreter

from tests.interpreted_triton import DEVICE
from tests.quick_triton.known import OWN, Kinds

pytestmark = [
    pytest.mark.skipif(DEVICE.type != "cpu", reason="the kernels are compiled"),
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore:Value 2 exceeds"),
]

TYPES = [tl.int1, tl.uint8, tl.int8, tl.int32, tl.int64, tl.float16, tl.bfloat16, tl.float32]
Shape = tuple[int, ...]
SHAPES: list[Shape] = [(4, 2), (4, 1), (2,), ()]
NUMBERS = [0, 3, -1, True, 0.5, 0.0, -0.0, 1e-300, 2**31, 2**33, float("inf"), float("nan")]
FLOATS = [0.0, -0.0, 1.5, -2.25, np.inf, -np.inf, np.nan, 1e-7, 6e4, 1 / 3]
SEEDS = range(2)
"""Other numbers each: the first is what is learned from."""
OPERATORS = [
    *("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "mod"),
    *("and", "or", "xor", "rxor", "lshift", "rshift", "lt", "le", "gt", "ge", "eq", "ne"),
]

Member = Callable[..., Any]


class Both:
    """Members of triton.language: the interpreter's own, and what is in their places."""

    def __init__(self) -> None:
        scope = SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
        own = interpreter._patch_lang.__self__._find(scope)
        self._own = {
            (owner, name): getattr(owner, name)
            for owner in (tl, tl.math, tl.tensor)
            for name in dir(owner)
        }
        own.restore()

    def __call__(self, owner: Any, name: str) -> tuple[Member, Member]:
        """(its own, ours)."""
        own, ours = self._own[owner, name], getattr(owner, name)
        assert own is not ours, "nothing is in its place"
        return own, ours


@pytest.fixture
def both() -> Iterator[Both]:
    """In a launch of one program, the second of three along each axis."""
    found = Both()
    scope = SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
    launch = interpreter._patch_lang(scope)
    interpreter.interpreter_builder.set_grid_dim(3, 3, 3)
    interpreter.interpreter_builder.set_grid_idx(1, 1, 1)
    yield found
    launch.restore()


def tile(of: Any, shape: Shape, seed: int) -> Any:
    random = np.random.default_rng(seed)
    held = interpreter._get_np_dtype(of)
    size = shape or (1,)
    if of.is_ptr():
        data = random.integers(1 << 20, 1 << 40, size).astype(held)
    elif of.name == "bf16":
        numbers = random.choice(FLOATS, size).astype(np.float32)
        data = (numbers.view(np.uint32) >> 16).astype(held)
    elif of.is_floating():
        data = random.choice(FLOATS, size).astype(held)
    else:
        low, high = (0, 2) if of.name == "int1" else (0, 100) if of.name[0] == "u" else (-99, 100)
        data = random.integers(low, high, size).astype(held)
    return made(data, of, shape)


def made(data: Any, of: Any, shape: Shape) -> Any:
    kind = tl.block_type(of, list(shape)) if shape else of
    return tl.tensor(interpreter.TensorHandle(data, of), kind)


def outcome(member: Member, *args: Any, **more: Any) -> object:
    try:
        with np.errstate(all="ignore"):
            found = member(*args, **more)
    except Exception as error:
        return type(error).__name__, str(error)
    return described(found)


def described(found: Any) -> object:
    data = found.handle.data
    shape = [int(size) for size in found.shape]
    kinds = str(found.type), str(found.dtype), str(found.handle.dtype), data.dtype, data.shape
    return *kinds, shape, int(found.numel), np.ascontiguousarray(data).tobytes()


class Tile(NamedTuple):
    """One to be drawn."""

    of: Any
    shape: Shape


def tiles(kinds: Iterable[Any], shapes: Iterable[Shape] = SHAPES) -> list[Tile]:
    return list(itertools.starmap(Tile, itertools.product(kinds, shapes)))


def check(members: tuple[Member, Member], *operands: Any, **more: Any) -> None:
    """The same becomes of the operands, tiles with the numbers of each seed."""
    own, ours = members
    for seed in SEEDS:
        given = [
            tile(*each, len(operands) * seed + at) if isinstance(each, Tile) else each
            for at, each in enumerate(operands)
        ]
        assert outcome(ours, *given, **more) == outcome(own, *given, **more), (operands, seed)


@pytest.mark.parametrize("name", OPERATORS)
def test_two_operands(both: Both, name: str) -> None:
    pointers = tl.pointer_type(tl.float32)
    kinds = TYPES if name in ("add", "lt", "rshift") else [*TYPES[:2], *TYPES[3:5], tl.float32]
    found = tiles([*kinds, pointers])
    for left, right in itertools.product(found, [*found, *NUMBERS, tl.constexpr(2)]):
        check(both(tl.tensor, f"__{name}__"), left, right)


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_the_greater_and_the_less(both: Both, name: str) -> None:
    found = tiles([tl.int32, tl.int64, tl.bfloat16, tl.float32])
    for operands in itertools.product([*found, *NUMBERS, tl.constexpr(2)], repeat=2):
        check(both(tl, name), *operands)


def test_a_choice(both: Both) -> None:
    found = tiles([tl.int1, tl.int32, tl.bfloat16, tl.float32], SHAPES[::2])
    operands = [*found, 0, 1, 0.0, -0.0, 0.5, float("nan"), tl.constexpr(2)]
    for condition, left, right in itertools.product(SHAPES[::2], operands, operands):
        check(both(tl, "where"), Tile(tl.int1, condition), left, right)


@pytest.mark.parametrize("name", ["exp", "exp2", "floor"])
def test_a_function(both: Both, name: str) -> None:
    for each in tiles(TYPES):
        check(both(tl.math, name), each)


def test_its_negative(both: Both) -> None:
    for each in tiles(TYPES):
        check(both(tl.tensor, "__neg__"), each)


def test_a_fused_sum(both: Both) -> None:
    found = tiles([tl.int32, tl.float32], [(4, 2), ()])
    for operands in itertools.product([*found, 0.5], repeat=3):
        check(both(tl, "fma"), *operands)


@pytest.mark.parametrize("more", [{}, {"bitcast": True}], ids=["a number", "its bits"])
def test_a_cast(both: Both, more: dict[str, Any]) -> None:
    for each, to in itertools.product(tiles(TYPES), TYPES):
        check(both(tl.tensor, "to"), each, to, **more)


def test_axes(both: Both) -> None:
    whole = slice(None)
    places = [(whole, None), (None, whole), (None, whole, whole), (whole, None, whole)]
    sizes = [[4, 2], [4, 4], [2, 4, 2], [tl.constexpr(4), 2], [3, 2]]
    for each in tiles(TYPES):
        check(both(tl, "trans"), each)
        for place in [*places, (0,), (slice(1), None)]:
            check(both(tl.tensor, "__getitem__"), each, place)
        for to in sizes:
            check(both(tl, "broadcast_to"), each, to)
            check(both(tl, "broadcast_to"), each, *to)


def test_what_is_made_of_nothing(both: Both) -> None:
    for bounds in ((0, 8), (8, 16), (tl.constexpr(0), tl.constexpr(8)), (0, 7), (8, 8)):
        check(both(tl, "arange"), *bounds)
    for shape, of in itertools.product([[4, 2], [tl.constexpr(8)], (3,), []], TYPES):
        for number in [*NUMBERS, tl.constexpr(2.5)]:
            check(both(tl, "full"), shape, number, of)
    for name, axis in itertools.product(["program_id", "num_programs"], [0, 1, 2, 3]):
        check(both(tl, name), axis)
        interpreter.interpreter_builder.set_grid_idx(2, 0, 1)
        check(both(tl, name), tl.constexpr(axis))


def test_nobody_writes_into_what_is_shared(both: Both) -> None:
    for name, args in (("arange", (0, 8)), ("full", ([8], 0, tl.float32))):
        member = both(tl, name)[1]
        member(*args)
        again = member(*args)
        with pytest.raises(ValueError, match="read-only"):
            again.handle.data[0] = 1
        again.handle.set_attr("tt.divisibility", [16])
        assert not member(*args).handle.attr


@pytest.mark.parametrize("name", ["_sum", "_elementwise_max", "_elementwise_min", "_xor", "_or"])
@pytest.mark.filterwarnings("ignore:All-NaN slice")
def test_a_number_of_a_row(both: Both, name: str) -> None:
    """_or is none of those that NumPy is asked for."""
    combine = getattr(tl.standard, name if "wise" in name else f"{name}_combine")
    for each in tiles([tl.int32, tl.int64, tl.float32], [(4, 2), (1, 8), (8,)]):
        for axis, keep in itertools.product([0, 1, tl.constexpr(0)], [False, True]):
            check(both(tl, "reduce"), each, axis, combine, keep)


def test_a_product(both: Both) -> None:
    for left, right, to in itertools.product([tl.float16, tl.float32, tl.bfloat16], repeat=3):
        operands = Tile(left, (16, 32)), Tile(right, (32, 16)), Tile(to, (16, 16))
        check(both(tl, "dot"), *operands)


MASKS: list[Shape | None] = [None, (4, 2), (1, 2), (4, 1), (2,), ()]


def places(of: Any, memory: Any, shape: Shape, seed: int) -> Any:
    """Pointers to elements of the memory, each another, as a store needs it."""
    order = np.random.default_rng(seed).permutation(len(memory))[: np.prod(shape, dtype=int)]
    addresses = memory.ctypes.data + memory.itemsize * order.astype(np.uint64)
    return made(addresses.reshape(shape or (1,)), tl.pointer_type(of), shape)


@pytest.mark.parametrize("other", [None, 0, 7, 0.5, float("-inf"), float("nan"), "a tile"])
def test_a_load(both: Both, other: Any) -> None:
    own, ours = both(tl, "load")
    for of, shape, mask, seed in itertools.product(TYPES, SHAPES, MASKS, SEEDS):
        memory = tile(of, (64,), seed + 5).handle.data
        pointers = places(of, memory, shape, seed)
        instead = tile(of, shape, seed) if isinstance(other, str) else other
        masked = None if mask is None else tile(tl.int1, mask, seed)
        for more in ({}, {"eviction_policy": "evict_first"}, {"eviction_policy": "none such"}):
            given = (pointers, masked, instead)
            found = outcome(ours, *given, **more)
            wanted = outcome(own, *given, **more)
            assert found == wanted, (of, shape, mask, more)


def test_a_store(both: Both) -> None:
    members = both(tl, "store")
    of_values: list[Any] = [(4, 2), (1, 2), (2,), (), 1.0]
    for of, source, shape, mask in itertools.product(TYPES, TYPES, SHAPES, MASKS):
        if source not in (of, tl.float32):
            continue
        for value, seed in itertools.product(of_values, SEEDS):
            written: list[object] = []
            for member in members:
                memory = tile(of, (16,), 5).handle.data
                pointers = places(of, memory, shape, seed)
                given = tile(source, value, seed + 1) if isinstance(value, tuple) else value
                masked = None if mask is None else tile(tl.int1, mask, seed)
                try:
                    with np.errstate(all="ignore"):
                        member(pointers, given, masked)
                except Exception as error:
                    written.append((type(error).__name__, str(error)))
                else:
                    written.append(memory.tobytes())
            assert written[0] == written[1], (of, source, shape, mask, value)


def test_kinds_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.quick_triton.known.MOST_KNOWN", 2)
    kinds = Kinds()
    for key in "abc":
        kinds.learn(key, OWN)
    assert [kinds.get(key) for key in "abc"] == [OWN, OWN, None]
