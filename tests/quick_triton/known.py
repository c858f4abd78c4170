"""What becomes of an operation in Triton's interpreter, once its operands' types are known.

The interpreter goes through a dozen functions for an operation, of which one computes. What they
find depends on types and shapes alone. So a first operation of each kind goes their way, and NumPy
computes the same beside it: if both have the same bits, type and shape, NumPy alone computes those
that follow. All else always goes the interpreter's way, errors too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle

FLOATS = frozenset({"fp32", "fp64"})
SIGNED = frozenset({"int8", "int16", "int32", "int64"})
INTEGERS = SIGNED | {"uint8", "uint16", "uint32", "uint64"}
NUMBERS = FLOATS | INTEGERS
"""Types that NumPy computes with as they are held. bfloat16 and float8 are held as their bits."""

MOST_KNOWN = 50_000
UNKNOWN, OWN = object(), object()


class Kinds:
    """What is known of each kind of one operation: what NumPy needs for it, or OWN if the
    interpreter must do it itself. Kinds beyond MOST_KNOWN are never known."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}
        self.get = self._known.get

    def learn(self, key: Any, what: Any) -> None:
        if len(self._known) < MOST_KNOWN:
            self._known[key] = what


class Shaped:
    """Makes tensors like one that the interpreter has made."""

    __slots__ = ("_element", "_members", "held")

    def __init__(self, like: Any) -> None:
        self._element = like.handle.dtype
        self._members = {name: getattr(like, name) for name in ("shape", "numel", "type", "dtype")}
        self.held: Any = like.handle.data.dtype
        """NumPy's type."""

    def tensor(self, data: Any) -> Any:
        handle = object.__new__(TensorHandle)
        handle.data, handle.dtype, handle.attr = data, self._element, {}
        made = object.__new__(tl.tensor)
        made.__dict__.update(self._members, handle=handle)
        return made


def same(data: Any, wanted: Any) -> bool:
    """Whether two arrays have the same type, shape and bits."""
    alike = isinstance(data, np.ndarray) and data.dtype is wanted.dtype
    return alike and data.shape == wanted.shape and data.tobytes() == wanted.tobytes()


def plain(operand: Any) -> Any:
    """A constant's value; all else as it is."""
    return operand.value if type(operand) is tl.constexpr else operand


def named(operand: Any) -> Any:
    """A tile's type, or a number, in a key. 0, 0.0 and -0.0 are three."""
    if type(operand) is tl.tensor:
        return operand.type.name
    return (type(operand), operand or str(operand))


def lasting(data: Any) -> Any:
    """Nobody writes into what many tiles share."""
    data.flags.writeable = False
    return data


def is_nan(operand: Any) -> bool:
    """Such a number is no key."""
    return type(operand) is float and operand != operand


def held_as(of: Any) -> Any:
    """NumPy's type of Triton's, by which the interpreter holds it."""
    return interpreter._get_np_dtype(of)


def constant(tile: Any, number: Any) -> Any:
    """A number, [1], in the type of the tile that it is combined with; None: it has another."""
    of, kind = tile.type.scalar.name, type(number)
    if (kind is int and of in NUMBERS) or (kind is float and of in FLOATS):
        return np.array([number or 0], held_as(tile.type))
    return None


def typed_constant(tile: Any, number: Any) -> Any:
    """The same where the number has a type of its own before, as in comparisons."""
    of, kind = tile.type.scalar.name, type(number)
    if kind is int and of in ("int32", "int64") and -(2**31) <= number < 2**31:
        return np.array([number], held_as(tile.type))
    if kind in (int, float) and of == "fp32":
        alone = interpreter.interpreter_semantic.to_tensor_type(number)
        if alone in (tl.int32, tl.float32):
            return np.array([number or 0], np.float32)
    return None
