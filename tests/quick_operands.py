"""Triton's checks of an operation's operands, done quickly where they find nothing to do.

Before each operation the interpreter finds the type that two operands have in common, casts and
broadcasts both, and turns numbers into tiles; and it computes each sum and product of integers
once more in 64 bits, for an overflow that it mentions in debug mode only. Together that is half of
an interpreted test's time. Here, operands that are alike pass as they are; a number's tile is
kept, and so is what becomes of two shapes. All else goes through the interpreter's own functions,
errors too.
"""

from __future__ import annotations

from typing import Any

import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime.interpreter import TensorHandle

NARROW = ("fp16", "bf16")
"""Quotients of these have another type."""
MOST_NUMBERS = 10_000


def use_quick_operands() -> None:
    """From now on, in this process."""
    TritonSemantic.binary_op_type_checking_impl = Matched(
        TritonSemantic.binary_op_type_checking_impl
    ).method()
    TritonSemantic.binary_op_sanitize_overflow_impl = _unless_nobody_asks(
        TritonSemantic.binary_op_sanitize_overflow_impl
    )
    TritonSemantic.broadcast_impl_value = Broadcast(TritonSemantic.broadcast_impl_value).method()
    TritonSemantic.cast = _cast(TritonSemantic.cast)


class Matched:
    """Two operands in one type and shape.

    match: TritonSemantic's own.
    """

    def __init__(self, match: Any) -> None:
        self._match = match
        self._tiles: dict[tuple[Any, ...], Any] = {}
        """Tiles of numbers, by what they are combined with, and how."""

    def method(self) -> Any:
        def match(
            semantic: Any,
            lhs: Any,
            rhs: Any,
            allow_lhs_ptr: bool = False,
            allow_rhs_ptr: bool = False,
            arithmetic_check: bool = True,
            div_or_mod: bool = False,
        ) -> tuple[Any, Any]:
            how = (allow_lhs_ptr, allow_rhs_ptr, arithmetic_check, div_or_mod)
            if type(lhs) is tl.tensor:
                if type(rhs) is tl.tensor:
                    return self._two_tiles(semantic, lhs, rhs, how)
                return self._with_number(semantic, lhs, rhs, how, 1)
            return self._with_number(semantic, lhs, rhs, how, 0)

        return match

    def _two_tiles(
        self, semantic: Any, lhs: Any, rhs: Any, how: tuple[bool, ...]
    ) -> tuple[Any, Any]:
        left, right = lhs.type, rhs.type
        of = left.scalar
        if of.name != right.scalar.name or of.is_ptr() or (how[3] and of.name in NARROW):
            return self._match(semantic, lhs, rhs, *how)  # type: ignore[no-any-return]
        if left.name == right.name:
            return lhs, rhs
        return semantic.broadcast_impl_value(lhs, rhs)  # type: ignore[no-any-return]

    def _with_number(
        self, semantic: Any, lhs: Any, rhs: Any, how: tuple[bool, ...], place: int
    ) -> tuple[Any, Any]:
        """place: the number's, 0 or 1."""
        tile, number = (lhs, rhs) if place else (rhs, lhs)
        if type(number) not in (int, float, bool) or type(tile) is not tl.tensor:
            return self._match(semantic, lhs, rhs, *how)  # type: ignore[no-any-return]
        key = (tile.type.name, type(number), number, place, how)
        known = self._tiles.get(key)
        if known is not None:
            data, element, shaped = known
            other = tl.tensor(TensorHandle(data, element), shaped)
            return (tile, other) if place else (other, tile)
        matched = self._match(semantic, lhs, rhs, *how)
        if matched[1 - place] is tile and number == number and len(self._tiles) < MOST_NUMBERS:
            made = matched[place]
            made.handle.data.flags.writeable = False
            self._tiles[key] = (made.handle.data, made.handle.dtype, made.type)
        return matched  # type: ignore[no-any-return]


class Broadcast:
    """Two tiles in one shape.

    broadcast: TritonSemantic's own.
    """

    def __init__(self, broadcast: Any) -> None:
        self._broadcast = broadcast
        self._known: dict[tuple[str, str], tuple[Any, Any]] = {}
        """What each of two types becomes, None where it stays."""

    def method(self) -> Any:
        def broadcast(semantic: Any, lhs: Any, rhs: Any) -> tuple[Any, Any]:
            key = (lhs.type.name, rhs.type.name)
            known = self._known.get(key)
            if known is None:
                left, right = self._broadcast(semantic, lhs, rhs)
                self._known[key] = (_changed(lhs, left), _changed(rhs, right))
                return left, right
            return _shaped(semantic, lhs, known[0]), _shaped(semantic, rhs, known[1])

        return broadcast


def _changed(before: Any, after: Any) -> Any:
    return None if after is before else after.type


def _shaped(semantic: Any, tile: Any, to: Any) -> Any:
    if to is None:
        return tile
    builder = semantic.builder
    if tile.type.is_block():
        return tl.tensor(builder.create_broadcast(tile.handle, to.shape), to)
    return tl.tensor(builder.create_splat(to, tile.handle), to)


def _unless_nobody_asks(check: Any) -> Any:
    """check: TritonSemantic's own, of overflows. It tells of them in debug mode only."""

    def checked(semantic: Any, lhs: Any, rhs: Any, operation: Any) -> None:
        if semantic.builder.options.debug:
            check(semantic, lhs, rhs, operation)

    return checked


def _cast(cast: Any) -> Any:
    def unless_it_is(semantic: Any, input: Any, to: Any, rounding: str | None = None) -> Any:
        return input if input.type.scalar is to.scalar else cast(semantic, input, to, rounding)

    return unless_it_is
