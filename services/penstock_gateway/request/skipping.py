"""Structs that skip unknown fields."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Hashable
from typing import Annotated, Any, TypeVar, Union, cast

import msgspec

Kind = TypeVar("Kind")


def skipping(kind: type[Kind]) -> type[Kind]:
    """A struct type like `kind`, and a subclass of it, that skips unknown fields at any depth."""
    return cast("type[Kind]", _struct(cast("Hashable", kind)))


@functools.cache
def _struct(kind: Any) -> Any:
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = []
    for field in msgspec.structs.fields(kind):
        if field.default_factory is not msgspec.NODEFAULT:
            default = msgspec.field(default_factory=field.default_factory, name=field.encode_name)
        else:
            default = msgspec.field(default=field.default, name=field.encode_name)
        fields.append((field.name, _annotation(hints[field.name]), default))
    return msgspec.defstruct(
        kind.__name__,
        fields,
        bases=(kind,),
        module=kind.__module__,
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=False,
    )


def _annotation(annotation: Any) -> Any:
    """The annotation with such structs in the place of those in it."""
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return _struct(annotation)
    arguments = typing.get_args(annotation)
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return Annotated[_annotation(arguments[0]), *annotation.__metadata__]
    if origin is Union or origin is types.UnionType:
        # `|` has no form for a number of types that is known here only.
        return Union[tuple(map(_annotation, arguments))]  # noqa: UP007
    if origin in (list, dict):
        return origin[tuple(map(_annotation, arguments))]
    return annotation
