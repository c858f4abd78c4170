"""What is wrong with a body, in words that tell people what to change."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from penstock.config.foreign_names import meant
from penstock.errors import Field, InvalidRequest

_PATH = re.compile(r"(?s)(?P<what>.*?)(?: - at `(?P<path>[^`]*)`)?")


_UNKNOWN = re.compile(r"(?s)Object contains unknown field `(?P<name>.*)`")


_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]*)`")


_UNLISTED = re.compile(r"(?s)Invalid enum value (?P<given>.*)")


_ENOUGH = 1000
"""Characters of either end of a complaint."""


MOST_LISTED = 24
"""Fields that an error lists; of more, a reader would find none."""


def not_json(reason: str) -> InvalidRequest:
    """The error for a body that is no JSON."""
    return InvalidRequest(f"the request body must be JSON: {reason}", code="invalid_json")


def explained(message: str, struct: Any) -> InvalidRequest:
    """The error for a body that doesn't fit the struct. message: msgspec's."""
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
    if (unlisted := _UNLISTED.fullmatch(what)) and (words := _words_at(struct, path)):
        allowed = ", ".join(sorted(words))
        return InvalidRequest(
            f"{where or 'the request'} is {unlisted['given']}; allowed: {allowed}",
            param=where or None,
            code="invalid_type",
        )
    complaint = what.replace("`", "").replace(" | ", " or ").replace("Expected", "expected")
    return InvalidRequest(
        f"{where or 'the request'}: {complaint}", param=where or None, code="invalid_type"
    )


def _unknown_field(name: str, path: str, struct: Any) -> InvalidRequest:
    where = _join(path, name[:100])
    allowed = sorted(_fields_at(struct, path))
    near = meant(name[:100], allowed)
    if near is not None:
        hint = f"did you mean {near}?"
    elif len(allowed) <= MOST_LISTED:
        hint = f"allowed: {', '.join(allowed)}"
    else:
        hint = "GET /docs lists those that there are"
    return InvalidRequest(
        "unknown field ",
        Field(where),
        f"; {hint}",
        param=where,
        code="unknown_parameter",
    )


def _join(path: str, name: str) -> str:
    return f"{path}.{name}".removeprefix("$").removeprefix(".")


def _fields_at(struct: Any, path: str) -> set[str]:
    """Names of the fields that structs at a path such as `$.messages[0]` have."""
    return {
        field.encode_name
        for here in _structs(_at(struct, path))
        for field in msgspec.structs.fields(here)
    }


def _words_at(struct: Any, path: str) -> set[str]:
    """What is allowed at such a path, where that are some words or numbers."""
    return {
        str(word)
        for here in _parts(_at(struct, path))
        if typing.get_origin(here) is typing.Literal
        for word in typing.get_args(here)
    }


def _at(struct: Any, path: str) -> list[Any]:
    """The annotations of what may lie at such a path."""
    found = [struct]
    for step in re.findall(r"\.(\w+)", path):
        found = [
            field.type
            for here in _structs(found)
            for field in msgspec.structs.fields(here)
            if field.encode_name == step
        ]
    return found


def _structs(annotations: Iterable[Any]) -> Iterator[type[msgspec.Struct]]:
    """The structs among annotations and what they are made of."""
    for each in _parts(annotations):
        if isinstance(each, type) and issubclass(each, msgspec.Struct):
            yield each


def _parts(annotations: Iterable[Any]) -> Iterator[Any]:
    """Annotations, and what they are made of."""
    for each in annotations:
        yield each
        if typing.get_origin(each) is not typing.Literal:
            yield from _parts(typing.get_args(each))
