"""Triton's interpreter without what it does again for every call and every tile.

Wherever a kernel calls a function of its own, the interpreter looks through all members of
`triton.language` once more and puts its own in their places, where they already are; for every tile
it makes its table of types anew, and writes out its type and its shape; it takes bfloat16 apart to
widen it; and at every launch it reads the kernel's signature several times, and copies all memory
that its arguments are part of onto itself. Together that is most of an interpreted test's time.
What is computed stays the same.
`quick_operands.py` does likewise for the operands of each operation.
"""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

from tests.quick_operands import use_quick_operands
from tests.quick_triton.members import quick


def use_quick_interpreter() -> None:
    """From now on, in this process."""
    interpreter._patch_lang = Members().put
    interpreter._get_np_dtype = Known(interpreter._get_np_dtype).dtype
    tl.core.block_type.__init__ = _described_once(tl.core.block_type.__init__)
    tl.core.tensor.__init__ = _shaped_once(tl.core.tensor.__init__)
    interpreter._convert_float = _halved(interpreter._convert_float)
    interpreter._implicit_cvt = _pointed_once(interpreter._implicit_cvt)
    interpreter.GridExecutor._init_args_hst = lambda _, args, kwargs: (args, kwargs)
    interpreter.GridExecutor._restore_args_dev = lambda *_: None
    interpreter.GridExecutor = _Executors(interpreter.GridExecutor)
    interpreter.inspect = _Signatures()
    use_quick_operands()


class Nothing:
    """What a call within a launch has to put back."""

    def restore(self) -> None:
        pass


class Members:
    """The interpreter's own members of triton.language: found once, in place during a launch."""

    def __init__(self) -> None:
        self._find = interpreter._patch_lang
        self._found: list[tuple[Any, str, Any, Any]] = []  # object, name, its member, the new one
        self._in_place = False

    def put(self, function: Any) -> Any:
        """For a launch of that kernel, or a call from within one. Returns what ends it."""
        if self._in_place:
            return Nothing()
        if not self._found:
            self._look_through()
        for owner, name, _, new in self._found:
            setattr(owner, name, new)
        self._in_place = True
        return self

    def restore(self) -> None:
        self._in_place = False
        for owner, name, old, _ in self._found:
            if old is interpreter._MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, old)

    def _look_through(self) -> None:
        """Both modules that kernels and triton.language's own functions refer to."""
        scope = self._find(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
        places = {(id(owner), name): (owner, name) for owner, name, _ in scope._changes}
        new = {place: getattr(*where) for place, where in places.items()}
        scope.restore()
        self._found = [
            (
                owner,
                name,
                vars(owner).get(name, interpreter._MISSING),
                quick(owner, name, new[place]),
            )
            for place, (owner, name) in places.items()
        ]


class Known:
    """NumPy's types of Triton's, asked for once each."""

    def __init__(self, ask: Any) -> None:
        self._ask = ask
        self._known: dict[str, np.dtype[Any]] = {}

    def dtype(self, of: Any) -> np.dtype[Any]:
        """of: a scalar's, pointer's or tile's type; a tile's is its elements'."""
        scalar = of.scalar
        known = self._known.get(scalar.name)
        if known is None:
            known = self._known[scalar.name] = self._ask(scalar)
        return known


def _described_once(describe: Any) -> Any:
    """block_type's own, for each element and shape."""
    known: dict[Any, dict[str, Any]] = {}

    def init(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = (getattr(size, "value", size) for size in shape)
        key = (element_ty.name, *sizes)
        described = known.get(key)
        if described is None:
            describe(self, element_ty, shape)
            known[key] = dict(vars(self))
        else:
            vars(self).update(described, element_ty=element_ty)

    return init


def _shaped_once(make: Any) -> Any:
    """tensor's own, for each type."""
    known: dict[str, dict[str, Any]] = {}

    def init(self: Any, handle: Any, type: Any) -> None:
        shaped = known.get(type.name)
        if shaped is None:
            make(self, handle, type)
            known[type.name] = {"shape": self.shape, "numel": self.numel}
        else:
            vars(self).update(shaped, handle=handle, type=type, dtype=type.scalar)

    return init


def _halved(convert: Any) -> Any:
    """The interpreter's own of floats' bits. Without rounding, a bfloat16 is the upper half of a
    float32."""

    def converted(numbers: Any, source: Any, target: Any, rounding: Any) -> Any:
        if rounding is None and source == tl.bfloat16 and target == tl.float32:
            return numbers.astype(np.uint32) << 16
        if rounding is None and source == tl.float32 and target == tl.bfloat16:
            return (np.ascontiguousarray(numbers).view(np.uint32) >> 16).astype(np.uint16)
        return convert(numbers, source, target, rounding)

    return converted


def _pointed_once(convert: Any) -> Any:
    """The interpreter's own of a kernel's argument, with the type found once of each dtype's
    pointers, and of small integers."""
    known: dict[Any, Any] = {}

    def converted(argument: Any) -> Any:
        if type(argument) is torch.Tensor:
            of, held, value = argument.dtype, np.uint64, argument.data_ptr
        elif type(argument) is int and -(2**31) <= argument < 2**31:
            of, held, value = int, np.int32, argument.__int__
        else:
            return convert(argument)
        kind = known.get(of)
        if kind is None:
            made = convert(argument)
            known[of] = made.type
            return made
        return tl.tensor(interpreter.TensorHandle(np.array([value()], dtype=held), kind), kind)

    return converted


class _Executors:
    """One GridExecutor for each kernel, which reads its annotations. Kernels launch none."""

    def __init__(self, make: Any) -> None:
        self._make = make
        self._known: dict[Any, Any] = {}

    def __call__(self, function: Any, names: Any, grid: Any, hooks: Any) -> Any:
        known = self._known.get(function)
        if known is None:
            known = self._known[function] = self._make(function, names, grid, hooks)
        known.grid = grid
        return known


class _Signatures:
    """The module inspect, of which each kernel's arguments are read once."""

    def __init__(self) -> None:
        self._known: dict[Any, inspect.FullArgSpec] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(inspect, name)

    def getfullargspec(self, function: Any) -> inspect.FullArgSpec:
        known = self._known.get(function)
        if known is None:
            known = self._known[function] = inspect.getfullargspec(function)
        return known

    def getcallargs(self, function: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        names = self.getfullargspec(function).args
        found = dict(zip(names, args, strict=False)) | kwargs
        if len(found) == len(names) == len(args) + len(kwargs):
            return found
        return inspect.getcallargs(function, *args, **kwargs)  # Defaults, and errors.
