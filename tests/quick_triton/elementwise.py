"""Operations on each element: of two tiles, of a tile and a number, of one tile, and of three."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl

from tests.quick_triton.known import (
    FLOATS,
    INTEGERS,
    NUMBERS,
    OWN,
    SIGNED,
    UNKNOWN,
    Kinds,
    Shaped,
    constant,
    held_as,
    is_nan,
    named,
    plain,
    same,
    typed_constant,
)

Compute = Callable[[Any, Any], Any]


def _whole_quotient(left: Any, right: Any) -> Any:
    """Towards zero, as the interpreter divides."""
    return (left - np.fmod(left, right)) // right


BITS = INTEGERS | {"int1"}
ARITHMETIC: dict[str, tuple[Compute, frozenset[str]]] = {
    "add": (np.add, NUMBERS),
    "sub": (np.subtract, NUMBERS),
    "mul": (np.multiply, NUMBERS),
    "truediv": (np.divide, FLOATS),
    "floordiv": (_whole_quotient, INTEGERS),
    "mod": (np.fmod, INTEGERS),
    "and": (np.bitwise_and, BITS),
    "or": (np.bitwise_or, BITS),
    "xor": (np.bitwise_xor, BITS),
    "lshift": (np.left_shift, INTEGERS),
    "rshift": (np.right_shift, INTEGERS),
}
"""By the name between underscores: what computes it, and of what types."""
REFLECTED = ARITHMETIC.keys() - {"lshift", "rshift"}
COMPARISONS: dict[str, Compute] = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}
EXTREMES: dict[str, Compute] = {"maximum": np.maximum, "minimum": np.minimum}
UNARY: dict[str, Callable[[Any], Any]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "floor": np.floor,
    "__neg__": lambda data: np.zeros(1, data.dtype) - data,
}


def of_tensors(name: str, own: Any) -> Any:
    """What takes the place of a tensor's member; None if nothing does."""
    bare = name.strip("_")
    if name == "to":
        return _to(own)
    if not name.startswith("__"):
        return None
    if bare in COMPARISONS:
        return Binary(own, COMPARISONS[bare], NUMBERS, typed_constant).method()
    if bare in ARITHMETIC:
        compute, types = ARITHMETIC[bare]
        return Binary(own, compute, types, constant, adds=bare == "add").method()
    if bare[:1] == "r" and bare[1:] in REFLECTED:
        compute, types = ARITHMETIC[bare[1:]]
        return Binary(own, lambda left, right: compute(right, left), types, constant).method()
    return _unary(own, UNARY[name]) if name in UNARY else None


def of_language(name: str, own: Any) -> Any:
    """The same of a function of triton.language."""
    if name in EXTREMES:
        return _number_last(Binary(own, EXTREMES[name], NUMBERS, typed_constant).method(), own)
    if name == "where":
        return _where(own)
    if name == "fma":
        return _fma(own)
    return _unary(own, UNARY[name]) if name in UNARY else None


class Binary:
    """An operation on a tile and another operand.

    compute: does it on two arrays of one type. types: names of those that it can.
    constant: a number as an array, for a tile. adds: also whole numbers to pointers.
    """

    def __init__(
        self,
        own: Any,
        compute: Compute,
        types: frozenset[str],
        constant: Callable[[Any, Any], Any],
        adds: bool = False,
    ) -> None:
        self._own = own
        self._compute = compute
        self._types = types
        self._constant = constant
        self._adds = adds
        self._tiles, self._numbers = Kinds(), Kinds()

    def method(self) -> Any:
        tiles, numbers, own, tensor = self._tiles.get, self._numbers.get, self._own, tl.tensor

        def operation(tile: Any, other: Any, *args: Any, **more: Any) -> Any:
            if args or more or type(tile) is not tensor:
                return own(tile, other, *args, **more)
            kind = type(other)
            if kind is tensor:
                way = tiles((tile.type.name, other.type.name), UNKNOWN)
                if way is UNKNOWN:
                    return self._learn_tiles(tile, other)
                if way is OWN:
                    return own(tile, other)
                compute, shaped = way
                data = compute(tile.handle.data, other.handle.data)
            else:
                number = other.value if kind is tl.constexpr else other
                kind = type(number)
                if (kind is not int and kind is not float) or number != number:
                    return own(tile, other)
                key = (tile.type.name, kind, number or str(number))
                way = numbers(key, UNKNOWN)
                if way is UNKNOWN:
                    return self._learn_number(tile, other, number, key)
                if way is OWN:
                    return own(tile, other)
                compute, shaped, array = way
                data = compute(tile.handle.data, array)
            return shaped.tensor(data) if data.dtype is shaped.held else own(tile, other)

        return operation

    def _learn_tiles(self, tile: Any, other: Any) -> Any:
        result = self._own(tile, other)
        compute, key = self._of_tiles(tile, other), (tile.type.name, other.type.name)
        known = compute and same(compute(tile.handle.data, other.handle.data), result.handle.data)
        self._tiles.learn(key, (compute, Shaped(result)) if known else OWN)
        return result

    def _learn_number(self, tile: Any, other: Any, number: Any, key: Any) -> Any:
        """number: what the other operand is."""
        result = self._own(tile, other)
        compute, made = self._of_number(tile, number)
        known = compute and same(compute(tile.handle.data, made), result.handle.data)
        self._numbers.learn(key, (compute, Shaped(result), made) if known else OWN)
        return result

    def _of_tiles(self, tile: Any, other: Any) -> Compute | None:
        of, others = tile.type.scalar, other.type.scalar
        if self._adds and of.is_ptr() and others.name in ("int32", "int64"):
            return _added_to(of)
        # NumPy takes the wider type of two that have signs, as Triton does.
        alike = of.name == others.name or {of.name, others.name} <= SIGNED
        return self._compute if alike and of.name in self._types else None

    def _of_number(self, tile: Any, number: Any) -> tuple[Compute | None, Any]:
        of = tile.type.scalar
        if of.is_ptr():
            small = self._adds and type(number) is int and 0 <= number < 2**31
            return (_added_to(of), np.array([number], np.int32)) if small else (None, None)
        made = self._constant(tile, number)
        known = made is not None and of.name in self._types
        return (self._compute if known else None, made)


def _added_to(pointer: Any) -> Compute:
    size = max(1, pointer.element_ty.primitive_bitwidth // 8)
    return lambda pointers, offsets: pointers + size * offsets.astype(np.uint64)


def _number_last(operation: Any, own: Any) -> Any:
    """The greater or the less of a whole number and a tile: the other way round."""

    def either(x: Any, y: Any, *args: Any, **more: Any) -> Any:
        if type(x) in (int, tl.constexpr) and type(y) is tl.tensor and y.type.scalar.is_int():
            return operation(y, x, *args, **more)
        return operation(x, y, *args, **more) if type(x) is tl.tensor else own(x, y, *args, **more)

    return either


def _unary(own: Any, compute: Callable[[Any], Any]) -> Any:
    known = Kinds()

    def operation(tile: Any, *args: Any, **more: Any) -> Any:
        if args or more or type(tile) is not tl.tensor:
            return own(tile, *args, **more)
        way = known.get(tile.type.name, UNKNOWN)
        if way is OWN:
            return own(tile)
        if way is not UNKNOWN:
            return way.tensor(compute(tile.handle.data))
        result = own(tile)
        alike = tile.type.scalar.name in NUMBERS
        alike = alike and same(compute(tile.handle.data), result.handle.data)
        known.learn(tile.type.name, Shaped(result) if alike else OWN)
        return result

    return operation


def _fma(own: Any) -> Any:
    known = Kinds()

    def fma(x: Any, y: Any, z: Any, *args: Any, **more: Any) -> Any:
        if args or more or not (type(x) is type(y) is type(z) is tl.tensor):
            return own(x, y, z, *args, **more)
        key = (x.type.name, y.type.name, z.type.name)
        way = known.get(key, UNKNOWN)
        if way is OWN:
            return own(x, y, z)
        data = x.handle.data * y.handle.data + z.handle.data if key[0] == key[1] == key[2] else None
        if way is not UNKNOWN:
            return way.tensor(data)
        result = own(x, y, z)
        alike = x.type.scalar.name in FLOATS and same(data, result.handle.data)
        known.learn(key, Shaped(result) if alike else OWN)
        return result

    return fma


def _to(own: Any) -> Any:
    """tensor.to, of types that NumPy casts between, of bfloat16 and float32, and of bits."""
    known = Kinds()

    def to(tile: Any, dtype: Any, *args: Any, **more: Any) -> Any:
        bits = more.get("bitcast") is True
        if args or more.keys() - {"bitcast"} or not isinstance(dtype, tl.dtype):
            return own(tile, dtype, *args, **more)
        key = (tile.type.name, dtype.name, bits)
        way = known.get(key, UNKNOWN)
        if way is OWN:
            return own(tile, dtype, **more)
        if way is not UNKNOWN:
            cast, shaped = way
            return tile if cast is None else shaped.tensor(cast(tile.handle.data))
        result = own(tile, dtype, **more)
        cast = None if result is tile else _cast_between(tile.type.scalar, dtype, bits)
        alike = cast is not None and same(cast(tile.handle.data), result.handle.data)
        known.learn(key, (cast, Shaped(result)) if alike or result is tile else OWN)
        return result

    return to


def _cast_between(source: Any, target: Any, bits: bool) -> Callable[[Any], Any] | None:
    if source.is_ptr() or target.is_ptr():
        return None
    held, names = held_as(target), (source.name, target.name)
    if bits:
        return None if "int1" in names else lambda data: data.view(held)
    if names == ("bf16", "fp32"):
        return lambda data: (data.astype(np.uint32) << 16).view(np.float32)
    if names == ("fp32", "bf16"):
        return lambda data: (np.ascontiguousarray(data).view(np.uint32) >> 16).astype(np.uint16)
    castable = names[0] in NUMBERS | {"int1"} and names[1] in NUMBERS
    castable |= names in (("fp16", "fp32"), ("fp32", "fp16"))
    return (lambda data: data.astype(held)) if castable else None


def _where(own: Any) -> Any:
    """tl.where, of bools and two operands in one type, of which one is a tile."""
    known = Kinds()

    def where(condition: Any, x: Any, y: Any, *args: Any, **more: Any) -> Any:
        x, y = plain(x), plain(y)
        if args or more or type(condition) is not tl.tensor or is_nan(x) or is_nan(y):
            return own(condition, x, y, *args, **more)
        key = (condition.type.name, named(x), named(y))
        way = known.get(key, UNKNOWN)
        if way is OWN:
            return own(condition, x, y)
        if way is not UNKNOWN:
            shaped, left, right = way
            left = x.handle.data if left is None else left
            right = y.handle.data if right is None else right
            data = np.where(condition.handle.data, left, right)
            return shaped.tensor(data) if data.dtype is shaped.held else own(condition, x, y)
        result = own(condition, x, y)
        known.learn(key, OWN)
        operands = _in_one_type(x, y)
        if operands is not None and condition.type.scalar.name == "int1":
            arrays = [each.handle.data if type(each) is tl.tensor else each for each in operands]
            if same(np.where(condition.handle.data, *arrays), result.handle.data):
                numbers = [None if type(each) is tl.tensor else each for each in operands]
                known.learn(key, (Shaped(result), *numbers))
        return result

    return where


def _in_one_type(x: Any, y: Any) -> tuple[Any, Any] | None:
    """Both operands, a number as an array of the other's type; None: the types differ."""
    if type(x) is tl.tensor and type(y) is tl.tensor:
        of = x.type.scalar.name
        return (x, y) if of == y.type.scalar.name and of in NUMBERS | {"int1"} else None
    tile, other = (x, y) if type(x) is tl.tensor else (y, x)
    number = constant(tile, other) if type(tile) is tl.tensor else None
    if number is None:
        return None
    return (x, number) if tile is x else (number, y)
