"""Where a body may grow: the lists, objects and texts of an operation's struct, and bodies in which
some of these are filled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Literal, NamedTuple

from msgspec import inspect

from tests.gateway.costs.companions import companions, sample

Kind = Literal["list", "table", "text", "any", "number", "flag"]
Path = tuple[str, ...]
"""Names of fields; "[]" for the elements of a list, "{}" for the values of an object."""
ELEMENT, VALUE = "[]", "{}"


class Site(NamedTuple):
    """A place in the bodies of an operation."""

    path: Path
    kind: Kind

    @property
    def name(self) -> str:
        return ".".join(self.path).replace(".[]", "[]").replace(".{}", "{}")


class Many(NamedTuple):
    """Fills a list with so many elements."""

    size: int


class Table(NamedTuple):
    """Fills an object with so many fields of any names."""

    size: int


class Leaf(NamedTuple):
    """Fills a place with a value as testing.costs.fillers has it."""

    value: Any


Filling = Many | Table | Leaf
Fillings = Mapping[Path, Filling]


def sites_of(body: Any) -> list[Site]:
    """All places, in the order of the struct's fields, each once."""
    found: dict[Site, None] = {}
    for site in _walk(_info(body), (), frozenset()):
        found.setdefault(site)
    return list(found)


@cache
def _info(body: Any) -> inspect.Type:
    return inspect.type_info(body)


def _walk(kind: inspect.Type, path: Path, above: frozenset[type]) -> Iterator[Site]:
    match kind:
        case inspect.Metadata():
            yield from _walk(kind.type, path, above)
        case inspect.UnionType():
            for each in kind.types:
                yield from _walk(each, path, above)
        case inspect.CollectionType():
            yield Site(path, "list")
            yield from _walk(kind.item_type, (*path, ELEMENT), above)
        case inspect.DictType():
            yield Site(path, "table")
            yield from _walk(kind.value_type, (*path, VALUE), above)
        case inspect.StructType():
            if kind.cls not in above:
                for field in kind.fields:
                    yield from _walk(field.type, (*path, field.encode_name), above | {kind.cls})
        case inspect.StrType():
            yield Site(path, "text")
        case inspect.AnyType() | inspect.RawType():
            yield Site(path, "any")
        case inspect.IntType():
            yield Site(path, "number")
        case inspect.BoolType():
            yield Site(path, "flag")


def body_with(body: Any, example: dict[str, Any], fillings: Fillings) -> Any:
    """A recipe's body: the example, and what is filled. body: the operation's type."""
    info = _info(body)
    if not isinstance(info, inspect.StructType):
        return {**example, **_object(fillings)}
    more = companions(info.cls.__name__, {step for path in fillings for step in path})
    kept = {name: value for name, value in example.items() if name not in more.get("-", ())}
    made = {**kept, **{name: value for name, value in more.items() if name != "-"}}
    return made | _fields(info, fillings, ())


def _object(fillings: Fillings) -> dict[str, Any]:
    return {path[0]: each.value for path, each in fillings.items() if isinstance(each, Leaf)}


def _fields(info: inspect.StructType, fillings: Fillings, here: Path) -> dict[str, Any]:
    """The fields that are filled."""
    names = {path[len(here)] for path in fillings if _below(path, here)}
    types = {field.encode_name: field.type for field in info.fields}
    owner = info.cls.__name__
    return {
        name: _built(types[name], fillings, (*here, name), f"{owner}.{name}")
        for name in sorted(names)
    }


def _below(path: Path, here: Path) -> bool:
    return len(path) > len(here) and path[: len(here)] == here


def _built(kind: inspect.Type, fillings: Fillings, here: Path, owner: str) -> Any:
    """owner: struct and field that hold it."""
    own = fillings.get(here)
    inner = [path[len(here)] for path in fillings if _below(path, here)]
    if isinstance(own, Leaf):
        return own.value
    if own is None and not inner:
        return _least(kind, owner)
    for each in _alternatives(kind):
        match each:
            case inspect.CollectionType() if isinstance(own, Many) or ELEMENT in inner:
                count = own.size if isinstance(own, Many) else 1
                item = _built(each.item_type, fillings, (*here, ELEMENT), owner)
                return {"$many": [count, item]}
            case inspect.DictType() if isinstance(own, Table) or VALUE in inner:
                count = own.size if isinstance(own, Table) else 1
                value = _built(each.value_type, fillings, (*here, VALUE), owner)
                return {"$table": [count, value]}
            case inspect.StructType() if {*inner} <= {f.encode_name for f in each.fields}:
                name = each.cls.__name__
                deeper = [path[len(here) :] for path in fillings if _below(path, here)]
                beside = companions(name, {step for path in deeper for step in path})
                made = {**_required(each), **sample(name, owner), **beside}
                return made | _fields(each, fillings, here)
    raise ValueError(f"nothing at {here} takes {own} and {inner}")


def _alternatives(kind: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(kind, inspect.UnionType):
        for each in kind.types:
            yield from _alternatives(each)
    elif isinstance(kind, inspect.Metadata):
        yield from _alternatives(kind.type)
    else:
        yield kind


def _least(kind: inspect.Type, owner: str) -> Any:
    """The smallest value."""
    (first, *_) = _alternatives(kind)
    match first:
        case inspect.StructType():
            return {**_required(first), **sample(first.cls.__name__, owner)}
        case inspect.CollectionType():
            return [_least(first.item_type, owner)]
        case inspect.DictType():
            return {}
        case inspect.LiteralType():
            return first.values[0]
        case inspect.IntType() | inspect.FloatType():
            return 1
        case inspect.BoolType():
            return True
        case _:
            return "a"


def _required(info: inspect.StructType) -> dict[str, Any]:
    known = sample(info.cls.__name__)
    return {
        field.encode_name: _least(field.type, f"{info.cls.__name__}.{field.encode_name}")
        for field in info.fields
        if field.required and field.encode_name not in known
    }
