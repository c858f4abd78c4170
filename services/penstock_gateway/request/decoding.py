"""Decodes raw bytes into request structs, with errors that tell people what to change."""

from __future__ import annotations

import difflib
import re
import typing
from codecs import BOM_UTF8
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from penstock.errors import InvalidRequest

Request = TypeVar("Request")

_PATH = re.compile(r"(?s)(?P<what>.*?)(?: - at `(?P<path>[^`]*)`)?")
_UNKNOWN = re.compile(r"(?s)Object contains unknown field `(?P<name>.*)`")
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]*)`")
_LONE_SURROGATE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"
)
_LONE = "an escape \\ud800 to \\udfff has no matching surrogate"
_TRUNCATED = "Input data was truncated"

_ENOUGH = 1000
"""Characters of either end of a complaint."""


SEARCHED = 65_536
"""Bytes of a body that are looked through for why it is no JSON."""


class ShortFields:
    """Fields of a struct that take one of some words. What msgspec says of any other word quotes
    it, which takes 4 ns a byte: of a body of 32 MiB, 0.1 s at once. So a long one is found first.
    """

    def __init__(self, kind: Any) -> None:
        names = b"|".join(sorted(re.escape(name.encode()) for name in _chosen(kind)))
        self._long = (
            re.compile(rb'"(' + names + rb')"\s*+:\s*+"[^"\\]{%d}' % SEARCHED) if names else None
        )

    def check(self, body: bytes) -> None:
        """Raises InvalidRequest that names the field."""
        found = None if self._long is None else self._long.search(body)
        if found is not None:
            name = found[1].decode()
            raise InvalidRequest(
                f"{name} is longer than any of the values that it may have",
                param=name,
                code="invalid_value",
            )


def _chosen(kind: Any) -> set[str]:
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
    return found


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
    """Raises InvalidRequest that names the field at fault and what is allowed there. What may be
    large is counted first, see check_amount. A byte order mark in front is skipped, as RFC 8259
    allows."""
    try:
        return decoder.decode(body.removeprefix(BOM_UTF8))
    except msgspec.ValidationError as error:
        raise _explain(str(error), decoder.type) from None
    except RecursionError:
        raise _not_json("it is nested too deeply") from None
    except UnicodeDecodeError:
        raise _not_json("it is not UTF-8") from None
    except (msgspec.DecodeError, ValueError) as error:
        reason = str(error).removeprefix("JSON is malformed: ") if body else "it is empty"
        raise _not_json(_surrogate(reason, body) or reason) from None


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
    Raises InvalidRequest as `decode` does."""
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise _explain(str(error), kind) from None
    except RecursionError:
        raise _not_json("it is nested too deeply") from None


def _not_json(reason: str) -> InvalidRequest:
    return InvalidRequest(f"the request body must be JSON: {reason}", code="invalid_json")


def _explain(message: str, struct: Any) -> InvalidRequest:
    if len(message) > 2 * _ENOUGH:
        # It quotes a client's key: what is said of it is short, and looking through it is not.
        message = message[:_ENOUGH] + message[-_ENOUGH:]
    match = _PATH.fullmatch(message)
    what = match["what"] if match else message
    path = (match and match["path"]) or "$"
    if unknown := _UNKNOWN.fullmatch(what):
        return _unknown_field(unknown["name"], path, struct)
    if missing := _MISSING.fullmatch(what):
        where = _join(path, missing["name"])
        return InvalidRequest(f"{where} is missing", param=where, code="missing_required_parameter")
    where = path.removeprefix("$").removeprefix(".")
    complaint = what.replace("`", "").replace(" | ", " or ").replace("Expected", "expected")
    return InvalidRequest(
        f"{where or 'the request'}: {complaint}", param=where or None, code="invalid_type"
    )


def _unknown_field(name: str, path: str, struct: Any) -> InvalidRequest:
    where = _join(path, name[:100])
    allowed = sorted(_fields_at(struct, path))
    near = difflib.get_close_matches(name[:100], allowed, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return InvalidRequest(
        f"unknown field {where}; {hint}allowed: {', '.join(allowed)}",
        param=where,
        code="unknown_parameter",
    )


def _join(path: str, name: str) -> str:
    return f"{path}.{name}".removeprefix("$").removeprefix(".")


def _fields_at(struct: Any, path: str) -> list[str]:
    """Names of the fields of the struct that lies at a path such as `$.messages[0]`."""
    here = struct
    for step in re.findall(r"\.(\w+)|\[[^\]]*\]", path):
        if step:
            here = _struct_in(typing.get_type_hints(here)[step])
    return [field.encode_name for field in msgspec.structs.fields(here)]


def _struct_in(annotation: Any) -> Any:
    """The first struct inside an annotation: list[Message] | None gives Message."""
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return annotation
    for argument in typing.get_args(annotation):
        found = _struct_in(argument)
        if found is not None:
            return found
    return None
