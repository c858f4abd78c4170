"""Loads and stores. What they need beside their pointers is made once for each kind: masks that
are nowhere false, and what is loaded where a mask is false."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

from tests.quick_triton.known import OWN, UNKNOWN, Kinds, Shaped, held_as, named, plain, same

HINTS = frozenset({"cache_modifier", "eviction_policy"})
"""What a load or a store may be told, and the interpreter doesn't care about."""


def of_language(name: str, own: Any) -> Any:
    """What takes the place of a function of triton.language; None if nothing does."""
    return {"load": _load, "store": _store}[name](own) if name in ("load", "store") else None


class Beside:
    """What a load or a store of one kind needs beside its pointers."""

    def __init__(self, pointers: Any, element: Any) -> None:
        self._everywhere = np.ones(pointers.shape, bool)
        self.held = held_as(element)

    def mask(self, given: Any) -> Any:
        """given: a tile, or None."""
        if given is None:
            return self._everywhere
        data = given.handle.data
        return data if data.shape == self._everywhere.shape else data & self._everywhere


def _load(own: Any) -> Any:
    """tl.load without a mask or with a tile of bools, and with nothing or a number in place of what
    is masked."""
    known, read = Kinds(), interpreter._interpreter.load

    def load(pointer: Any, mask: Any = None, other: Any = None, *args: Any, **more: Any) -> Any:
        mask, other = plain(mask), plain(other)
        if args or not _simple(pointer, mask, more) or type(other) not in (int, float, type(None)):
            return own(pointer, mask, other, *args, **more)
        masked = None if mask is None else mask.type.name
        key = (pointer.type.name, masked, named(other), *more.items())
        way = known.get(key, UNKNOWN)
        if way is OWN:
            return own(pointer, mask, other, **more)
        if way is not UNKNOWN:
            shaped, beside, instead = way
            data = read(pointer.handle.data, beside.mask(mask), instead, beside.held)
            return shaped.tensor(data)
        result = own(pointer, mask, other, **more)
        known.learn(key, OWN)
        element, data = pointer.type.scalar.element_ty, pointer.handle.data
        if element.name != "int1" and result.handle.data.shape == data.shape:
            beside = Beside(data, element)
            instead = _instead(other, pointer, beside.held)
            if same(read(data, beside.mask(mask), instead, beside.held), result.handle.data):
                known.learn(key, (Shaped(result), beside, instead))
        return result

    return load


def _simple(pointer: Any, mask: Any, more: dict[str, Any]) -> bool:
    """Whether a load or a store is one of those that are quick."""
    if type(pointer) is not tl.tensor:
        return False
    of = pointer.type.scalar
    if not of.is_ptr() or of.element_ty.is_block():
        return False
    if mask is not None and (type(mask) is not tl.tensor or mask.type.scalar.name != "int1"):
        return False
    return not more or (more.keys() <= HINTS and all(type(each) is str for each in more.values()))


def _instead(number: Any, pointer: Any, held: Any) -> Any:
    """What is loaded in each place where a mask is false, as the interpreter has it."""
    if number is None:
        return np.zeros(pointer.handle.data.shape, held)
    semantic = interpreter.interpreter_semantic
    made = semantic.to_tensor(number)
    if pointer.type.is_block():
        _, made = semantic.broadcast_impl_value(pointer, made)
    return semantic.cast(made, pointer.type.scalar.element_ty).handle.data.copy()


def _store(own: Any) -> Any:
    """tl.store of a tile of the pointers' own type and shape."""
    known, write = Kinds(), interpreter._interpreter.store

    def store(pointer: Any, value: Any, mask: Any = None, *args: Any, **more: Any) -> Any:
        mask = plain(mask)
        if args or type(value) is not tl.tensor or not _simple(pointer, mask, more):
            return own(pointer, value, mask, *args, **more)
        masked = None if mask is None else mask.type.name
        key = (pointer.type.name, value.type.name, masked, *more.items())
        way = known.get(key, UNKNOWN)
        if way is not OWN and way is not UNKNOWN:
            write(pointer.handle.data, value.handle.data, way.mask(mask))
            return None
        result = own(pointer, value, mask, **more)
        if way is UNKNOWN:
            known.learn(key, _beside_store(pointer, value, mask))
        return result

    return store


def _beside_store(pointer: Any, value: Any, mask: Any) -> Any:
    element, shape = pointer.type.scalar.element_ty, pointer.handle.data.shape
    alike = element.name == value.type.scalar.name != "int1" and value.handle.data.shape == shape
    if not alike or (mask is not None and len(mask.handle.data.shape) > len(shape)):
        return OWN
    return Beside(pointer.handle.data, element)
