"""Structs of numbers as the command line has them: `rate=5,tenants=40`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from penstock.errors import InvalidRequest

Made = TypeVar("Made", bound=msgspec.Struct)


def fields_of(text: str) -> dict[str, str]:
    """Returns the values of `NAME=VALUE,NAME=VALUE`, by their names."""
    pairs = [pair.partition("=") for pair in text.split(",") if pair]
    return {name.strip(): value for name, _, value in pairs}


def made_of(fields: Mapping[str, str], kind: type[Made], said: str) -> Made:
    """Returns a struct with these fields. Raises InvalidRequest, which begins with `said` and names
    what isn't allowed."""
    try:
        return msgspec.convert(fields, kind, strict=False)
    except msgspec.ValidationError as error:
        names = ", ".join(kind.__struct_fields__)
        raise InvalidRequest(f"{said}: {error}; fields: {names}") from None
