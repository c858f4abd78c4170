"""JSON bodies as request structs."""

from __future__ import annotations

import asyncio
import functools
import math
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from penstock.errors import InvalidRequest
from penstock_gateway.request.complaints import explained, not_json
from penstock_gateway.request.long_numbers import check_numbers
from penstock_gateway.request.loose_values import as_meant

Request = TypeVar("Request")


_LONE_SURROGATE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"
)


_LONE = "an escape \\ud800 to \\udfff has no matching surrogate"


_TRUNCATED = "Input data was truncated"


_PIECE = 1 << 18


SEARCHED = 65_536
"""Bytes of a body that are looked through for why it is no JSON."""


class ShortFields:
    """Fields of a struct that take one of some words. What msgspec says of any other word quotes
    it, which takes 4 ns a byte: of a body of 32 MiB, 0.1 s at once. So a long one is found first.

    The fields are looked for when the first body comes: most structs never get one that is large,
    and those of all endpoints take 0.2 s of a start.
    """

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    def check(self, body: bytes) -> None:
        """Raises InvalidRequest that names the field."""
        long = _long_choices(self._kind)
        found = None if long is None else long.search(body)
        if found is not None:
            name = found[1].decode()
            raise InvalidRequest(
                f"{name} is longer than any of the values that it may have",
                param=name,
                code="invalid_value",
            )


@functools.cache
def _long_choices(kind: Any) -> re.Pattern[bytes] | None:
    """Finds a long text in a field that takes one of some words; None: no field does. To look for
    the fields takes milliseconds."""
    names = b"|".join(sorted(re.escape(name.encode()) for name in _chosen(kind)))
    return re.compile(rb'"(' + names + rb')"\s*+:\s*+"[^"\\]{%d}' % SEARCHED) if names else None


def _chosen(kind: Any) -> frozenset[str]:
    """Names of the fields, at any depth, whose texts are words to choose from."""
    found: set[str] = set()
    seen: set[Any] = set()
    left = [inspect.type_info(kind)]
    while left:
        each = left.pop()
        if isinstance(each, inspect.StructType):
            if each.cls in seen:
                continue
            seen.add(each.cls)
            if each.tag_field is not None:
                found.add(each.tag_field)
            for field in each.fields:
                if any(isinstance(one, _CHOICES) for one in _flat(field.type)):
                    found.add(field.encode_name)
                left.append(field.type)
        else:
            left += _inner(each)
    return frozenset(found)


_CHOICES = (inspect.LiteralType, inspect.EnumType)


def _flat(kind: inspect.Type) -> tuple[inspect.Type, ...]:
    return kind.types if isinstance(kind, inspect.UnionType) else (kind,)


def _inner(kind: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(kind, inspect.UnionType):
        yield from kind.types
    elif isinstance(kind, inspect.CollectionType):
        yield kind.item_type
    elif isinstance(kind, inspect.TupleType):
        yield from kind.item_types
    elif isinstance(kind, inspect.DictType):
        yield kind.value_type


def decode(body: bytes, decoder: msgspec.json.Decoder[Request]) -> Request:
    """What `decode_fields` returns, for a body that may bring schemas: raises InvalidRequest also
    for a number of one that no double holds."""
    request = decode_fields(body, decoder)
    check_numbers(body.removeprefix(BOM_UTF8))
    return request


def decode_fields(body: bytes, decoder: msgspec.json.Decoder[Request]) -> Request:
    """Raises InvalidRequest that names the field at fault and what is allowed there. What may be
    large is counted first, see check_amount. A byte order mark in front is skipped, as RFC 8259
    allows. What can mean only one thing is taken so, see as_meant."""
    body = body.removeprefix(BOM_UTF8)
    try:
        try:
            request = decoder.decode(body)
        except msgspec.ValidationError:
            meant = _meant(body, decoder.type)
            if meant is None:
                raise
            request = decoder.decode(meant)
    except msgspec.ValidationError as error:
        raise explained(str(error), decoder.type) from None
    except RecursionError:
        raise not_json("it is nested too deeply") from None
    except UnicodeDecodeError:
        raise not_json("it is not UTF-8") from None
    except (msgspec.DecodeError, ValueError) as error:
        reason = str(error).removeprefix("JSON is malformed: ") if body else "it is empty"
        raise not_json(_surrogate(reason, body) or reason) from None
    return request


async def decode_large(
    body: bytes, decoder: msgspec.json.Decoder[Request], again: Callable[[bytes], Request]
) -> Request:
    """What `again` returns, which a thread asks where something is wrong at first sight."""
    try:
        request = decoder.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return await asyncio.to_thread(again, body)
    await asyncio.to_thread(check_numbers, body)
    return request


def _meant(body: bytes, kind: Any) -> bytes | None:
    """The body as it was meant; None where it says what it means."""
    if not any(_holds(body, text) for text in (b"null", b".0")):
        return None
    try:
        given = msgspec.json.decode(body)
    except msgspec.ValidationError:
        given = _KEEPS_NUMBERS.decode(body)
    meant = as_meant(given, kind)
    return None if meant is given else msgspec.json.encode(meant)


def _number(text: str) -> float | msgspec.Raw:
    """Returns a number, or the text of one that is too large: the reader of the field names it in
    the error."""
    number = float(text)
    return number if math.isfinite(number) else msgspec.Raw(text.encode())


_KEEPS_NUMBERS = msgspec.json.Decoder(float_hook=_number)


def _holds(body: bytes, text: bytes) -> bool:
    """Whether body holds text. Searches a piece at a time, so that other threads get the
    interpreter in between."""
    return any(text in body[at : at + _PIECE + len(text)] for at in range(0, len(body), _PIECE))


def _surrogate(reason: str, body: bytes) -> str | None:
    """msgspec's complaint of an escape without its other half, in words that say so: it takes the
    first half at a string's end for the body's end."""
    if reason.startswith("invalid utf-16 surrogate pair"):
        return _LONE
    if reason != _TRUNCATED:
        return None
    if len(body) > SEARCHED:
        return f"{reason}, or {_LONE}"
    return _LONE if _LONE_SURROGATE.search(body) else None


def convert(value: object, kind: type[Request], *, strict: bool = True) -> Request:
    """What was decoded before, as a struct. strict: numbers and flags aren't taken as texts.
    Raises InvalidRequest as `decode` does, and takes the same for what is meant."""
    try:
        return msgspec.convert(as_meant(value, kind), kind, strict=strict)
    except msgspec.ValidationError as error:
        raise explained(str(error), kind) from None
    except RecursionError:
        raise not_json("it is nested too deeply") from None
