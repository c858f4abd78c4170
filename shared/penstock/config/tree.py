"""The configuration tree as a list of leaves: what flags, files, keywords and the table walk over.

A leaf's name is unique in the tree, so that a flag needs no path: `--max-num-seqs` is
`engine.scheduler.max_num_seqs`.
"""

from __future__ import annotations

import functools
import math
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from penstock.config.plugins import check_named
from penstock.errors import InvalidRequest

T = TypeVar("T", bound=msgspec.Struct)

ADVANCED = {"advanced": True}
"""The `extra` of a setting that few people need: `--help` leaves it out, `--help-all` doesn't."""


@dataclass(frozen=True)
class Leaf:
    """One setting. path: field names from the root.  kind: int, float, bool or str.
    choices: the allowed words, if they are listed.  optional: None is a value.
    separator: of a list of words, which a flag takes as words of their own too; empty: none is.
    plugins: the group of plug-ins whose names are allowed in addition to the choices; empty: there
    are none."""

    path: tuple[str, ...]
    kind: type
    default: Any
    description: str
    allowed: str
    choices: tuple[str, ...]
    optional: bool
    annotation: Any
    section: str
    separator: str = ""
    plugins: str = ""
    advanced: bool = False
    """Whether it is left out of `--help`: see ADVANCED."""

    @property
    def name(self) -> str:
        return self.path[-1]

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    def check(self, value: Any) -> Any:
        """The value, if this setting may have it. Raises InvalidRequest that says what may be."""
        try:
            if isinstance(value, float) and not math.isfinite(value):
                raise msgspec.ValidationError("not finite")
            found = msgspec.convert(value, self.annotation)
            if self.plugins:
                check_named(self.name, found, self.choices, self.plugins)
            return found
        except ValueError:
            raise InvalidRequest(
                f"{self.name}: {value!r} is not allowed; expected {self.allowed}", param=self.name
            ) from None

    def parse(self, text: str) -> Any:
        """A flag's text as the setting's value. Raises as `check` does."""
        if self.optional and text.lower() == "none":
            return None
        try:
            value = _PARSERS[self.kind](text)
        except ValueError:
            value = text
        return self.check(value)


def _parse_bool(text: str) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in words:
        raise ValueError(text)
    return words[text.lower()]


_PARSERS: dict[type, Callable[[str], Any]] = {int: int, float: float, str: str, bool: _parse_bool}


@functools.cache
def leaves(root: type[msgspec.Struct]) -> tuple[Leaf, ...]:
    """Every setting under `root`, in the order of declaration; names are unique."""
    info = inspect.type_info(root)
    if not isinstance(info, inspect.StructType):
        raise TypeError(f"{root!r} is not a msgspec struct")
    found = tuple(_walk(info, ()))
    names = [leaf.name for leaf in found]
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise TypeError(f"{root.__name__} has more than one setting called {', '.join(twice)}")
    return found


def _walk(info: inspect.StructType, path: tuple[str, ...]) -> Iterator[Leaf]:
    section = _first_line(info.cls)
    hints = typing.get_type_hints(info.cls, include_extras=True)
    for field in info.fields:
        here = (*path, field.name)
        if isinstance(field.type, inspect.StructType):
            yield from _walk(field.type, here)
        else:
            yield _leaf(here, field, hints[field.name], section)


def _leaf(path: tuple[str, ...], field: inspect.Field, annotation: Any, section: str) -> Leaf:
    kind, description, optional, extra = field.type, "", False, {}
    if isinstance(kind, inspect.Metadata):
        extra = kind.extra or {}
        description = (kind.extra_json_schema or {}).get("description", "")
        kind = kind.type
    if isinstance(kind, inspect.UnionType):
        members = [m for m in kind.types if not isinstance(m, inspect.NoneType)]
        optional = len(members) < len(kind.types)
        kind = members[0]
        if isinstance(kind, inspect.Metadata):
            kind = kind.type
    choices: tuple[str, ...] = extra.get("built_in", ())
    if isinstance(kind, inspect.LiteralType):
        choices = tuple(str(value) for value in kind.values)
    return Leaf(
        path=path,
        kind=_python_type(kind, path),
        default=field.default,
        description=description,
        allowed=_allowed(kind, choices, optional)
        + (", or a plug-in's name" if extra.get("plugins") else ""),
        choices=choices,
        optional=optional,
        annotation=annotation,
        section=section,
        separator=extra.get("separator", ""),
        plugins=extra.get("plugins", ""),
        advanced=extra.get("advanced", False),
    )


def _python_type(kind: inspect.Type, path: tuple[str, ...]) -> type:
    kinds: dict[type, type] = {
        inspect.IntType: int,
        inspect.FloatType: float,
        inspect.BoolType: bool,
        inspect.StrType: str,
        inspect.LiteralType: str,
    }
    if type(kind) not in kinds:
        raise TypeError(f"{'.'.join(path)}: no flag can be made of {kind!r}")
    return kinds[type(kind)]


def _allowed(kind: inspect.Type, choices: tuple[str, ...], optional: bool) -> str:
    if choices:
        words = "one of " + ", ".join(choices)
    elif isinstance(kind, inspect.IntType):
        words = "a whole number" + _range(kind)
    elif isinstance(kind, inspect.FloatType):
        words = "a number" + _range(kind)
    elif isinstance(kind, inspect.BoolType):
        words = "true or false"
    else:
        words = "text"
    return words + (", or none" if optional else "")


def _range(kind: inspect.IntType | inspect.FloatType) -> str:
    low = f"[{kind.ge:,}" if kind.ge is not None else f"({kind.gt:,}" if kind.gt is not None else ""
    high = (
        f"{kind.le:,}]" if kind.le is not None else f"{kind.lt:,})" if kind.lt is not None else ""
    )
    if low and high:
        return f" in {low}, {high}"
    if low:
        return f" {'≥' if kind.ge is not None else '>'} {low[1:]}"
    return f" {'≤' if kind.le is not None else '<'} {high[:-1]}" if high else ""


def _first_line(struct: type) -> str:
    return (struct.__doc__ or "").strip().splitlines()[0].rstrip(".")


def replace_settings(config: T, settings: Mapping[str, Any]) -> T:
    """`config` with the named leaves changed, each checked.

    settings: leaf name -> value.  Raises InvalidRequest for an unknown name or a value out of
    range.
    """
    known = {leaf.name: leaf for leaf in leaves(type(config))}
    for name, value in settings.items():
        leaf = known.get(name)
        if leaf is None:
            raise InvalidRequest(
                f"no setting is called {name!r}; there are {', '.join(sorted(known))}", param=name
            )
        config = _replace_at(config, leaf.path, leaf.check(value))
    return config


def _replace_at(struct: Any, path: tuple[str, ...], value: Any) -> Any:
    if len(path) > 1:
        value = _replace_at(getattr(struct, path[0]), path[1:], value)
    return msgspec.structs.replace(struct, **{path[0]: value})


def load_file(root: type[T], file: str, flag: str = "--config") -> T:
    """Reads a YAML file (JSON is YAML too) that holds the tree, or a part of it. flag: that named
    it, for messages.

    Raises InvalidRequest: no such file, not YAML, an unknown or ill-typed field, named by path.
    """
    try:
        raw = Path(file).read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{flag} {file}: {error.strerror}") from None
    try:
        return _decode(root, raw)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"{flag} {file}: {error}") from None


def _decode(root: type[T], raw: bytes) -> T:
    # What the supervisor writes for its children is JSON; for that no YAML parser is loaded.
    if raw.lstrip()[:1] == b"{":
        try:
            return msgspec.json.decode(raw, type=root)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            pass  # a flow mapping of YAML begins with a brace as well
    return msgspec.yaml.decode(raw, type=root)
