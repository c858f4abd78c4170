"""What clients write otherwise, and can mean only one thing.

Fields that are null, and that a request doesn't have or doesn't take as null: generated SDKs write
all fields that they know, and null where the caller said nothing. They are as if absent.
Whole numbers with a fraction of zero, 5.0: languages without whole numbers, or whose JSON libraries
read all numbers alike, write them so.
"""

from __future__ import annotations

import functools
from typing import Any

import msgspec
from msgspec import inspect


def as_meant(value: Any, kind: Any) -> Any:
    """What was decoded, without such fields and numbers; `value` itself where there are none.
    kind: the type that it is to be converted to. What a request may fill freely, such as a JSON
    schema or a call's arguments, stays as it is. Raises RecursionError."""
    return _meant(value, _reading(kind))


class _Reading:
    """What may lie at a place of a request.

    fields: of each struct that may lie there, by the value of its tag.  items, values: of lists and
    of free objects; None where no struct is in them.
    """

    def __init__(self) -> None:
        self.tag = ""
        self.fields: dict[Any, dict[str, _Field]] = {}
        self.items: _Reading | None = None
        self.values: _Reading | None = None

    def of(self, value: dict[str, Any]) -> dict[str, _Field] | None:
        """The fields of the struct that an object will be; None: it will be none."""
        if not self.tag:
            return self.fields.get(None)
        tag = value.get(self.tag)
        return self.fields.get(tag) if isinstance(tag, str | int) else None


class _Field:
    """may_be_null: it takes null, or it must be there, and null is its own error.  whole: a number
    in it is whole."""

    def __init__(self, field: inspect.Field) -> None:
        self._type = field.type
        kinds = field.type.types if isinstance(field.type, inspect.UnionType) else (field.type,)
        takes_null = any(isinstance(kind, _TAKE_NULL) for kind in kinds)
        self.may_be_null = field.required or takes_null
        self.whole = any(isinstance(kind, inspect.IntType) for kind in kinds) and not any(
            isinstance(kind, (inspect.FloatType, *_TAKE_ALL)) for kind in kinds
        )

    def meant(self, value: Any) -> Any:
        if self.whole and isinstance(value, float) and value.is_integer():
            return int(value)
        return _meant(value, self.reading)

    @functools.cached_property
    def reading(self) -> _Reading | None:
        return _of_type(self._type)


_TAKE_ALL = (inspect.AnyType, inspect.RawType)
_TAKE_NULL = (inspect.NoneType, *_TAKE_ALL)


@functools.cache
def _reading(kind: Any) -> _Reading | None:
    return _of_type(inspect.type_info(kind))


def _of_type(kind: inspect.Type) -> _Reading | None:
    """None where there is no struct in it."""
    found = _Reading()
    for each in kind.types if isinstance(kind, inspect.UnionType) else (kind,):
        if isinstance(each, inspect.StructType):
            found.tag = each.tag_field or ""
            found.fields[each.tag] = _fields(each.cls)
        elif isinstance(each, inspect.CollectionType):
            found.items = _of_type(each.item_type)
        elif isinstance(each, inspect.DictType):
            found.values = _of_type(each.value_type)
    return found if found.fields or found.items or found.values else None


@functools.cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, _Field]:
    described = inspect.type_info(kind)
    if not isinstance(described, inspect.StructType):
        return {}
    return {field.encode_name: _Field(field) for field in described.fields}


def _meant(value: Any, reading: _Reading | None) -> Any:
    if reading is None or not isinstance(value, dict | list):
        return value
    if isinstance(value, list):
        if reading.items is None:
            return value
        items = [_meant(item, reading.items) for item in value]
        return items if any(a is not b for a, b in zip(items, value, strict=True)) else value
    fields = reading.of(value)
    made: dict[str, Any] = {}
    for name, given in value.items():
        field = None if fields is None else fields.get(name)
        if fields is None:
            made[name] = _meant(given, reading.values)
        elif given is None and name != reading.tag and (field is None or not field.may_be_null):
            continue
        else:
            made[name] = given if field is None else field.meant(given)
    same = len(made) == len(value) and all(made[name] is value[name] for name in made)
    return value if same else made
