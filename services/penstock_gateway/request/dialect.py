"""Another API's names for fields of ours: a table of each API, and what reads it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from penstock.errors import InvalidRequest
from penstock_gateway.request.fields import UnsupportedField, check_unsupported


class NamedField(NamedTuple):
    """A field of a body, and ours that means the same."""

    theirs: str
    """Path in the body; a dot leads into an object."""
    ours: str
    neutral: tuple[Any, ...] = ()
    """Values besides null that stand for nothing said."""
    least: float | None = None
    """What a smaller value means the same as; None: there is no such value."""
    only_named: bool = False
    """Whether errors alone have its name from here: its value is read by code."""


def same(*names: str, within: str = "") -> Iterator[NamedField]:
    """Fields that have our names. within: path of the object that they are in."""
    for name in names:
        yield NamedField(f"{within}.{name}" if within else name, name)


def named(theirs: str, *ours: str) -> Iterator[NamedField]:
    """A name in errors alone, for one or more fields of ours."""
    for name in ours:
        yield NamedField(theirs, name, only_named=True)


class Dialect:
    """An API's fields.

    unsupported: its fields that do nothing here, accepted only at the values that ask for nothing.
    Of two fields with the same name of ours, the first one's is said.
    """

    def __init__(self, *fields: NamedField, unsupported: tuple[UnsupportedField, ...] = ()) -> None:
        self.fields = fields
        self.unsupported = unsupported
        self._copied = tuple(
            (each, each.theirs.split(".")) for each in fields if not each.only_named
        )
        self._theirs = {each.ours: each.theirs for each in reversed(fields)}

    def ours(self, request: Any) -> dict[str, Any]:
        """Values of the table's fields, by our names; None where a body says nothing."""
        return {each.ours: _said(request, each, path) for each, path in self._copied}

    def check(self, request: Any) -> None:
        """Raises InvalidRequest for an unsupported field that asks for something."""
        check_unsupported(request, self.unsupported)

    def theirs(self, path: str) -> str:
        """The API's path of a field, or of what is in one: the longest part of the path that the
        table has is renamed. What it hasn't has the same name."""
        end = len(path)
        while end > 0:
            own = self._theirs.get(path[:end])
            if own is not None:
                return own + path[end:]
            end = max(path.rfind(".", 0, end), path.rfind("[", 0, end))
        return path

    def own_words(self, error: InvalidRequest) -> InvalidRequest:
        """The error, with the API's names of fields."""
        return error.renamed(self.theirs)


def moved(path: str, old: str, new: str) -> str:
    """The path, with `new` in place of `old` where it begins with that."""
    return new + path[len(old) :] if path.startswith(old) else path


def _said(request: Any, field: NamedField, path: list[str]) -> Any:
    value = request
    for name in path:
        if value is None:
            return None
        value = getattr(value, name)
    if value is None or value in field.neutral:
        return None
    return value if field.least is None else max(field.least, value)
