"""Typed access to the loosely typed settings of GGUF metadata and config.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from penstock.errors import UnsupportedModel


class Fields:
    """Settings by key. A value of the wrong type raises UnsupportedModel, naming file and key.

    A key that is missing or null gives the default; without a default it raises too.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = values
        self.where = where
        self._asked: set[str] = set()

    def completed(self, **defaults: Any) -> Fields:
        """Returns these settings, with `defaults` for those that are missing."""
        stated = {key: value for key, value in self.values.items() if value is not None}
        other = Fields({**defaults, **stated}, self.where)
        other._asked = self._asked
        return other

    def with_absent(self, values: Mapping[str, Any]) -> Fields:
        """These settings, with `values` for keys that are missing; a null stays one."""
        return self.replaced({key: each for key, each in values.items() if key not in self.values})

    def replaced(self, values: Mapping[str, Any]) -> Fields:
        """These settings, with others for some keys."""
        other = Fields({**self.values, **values}, self.where)
        other._asked = self._asked
        return other

    def without(self, *keys: str) -> Fields:
        """These settings but for some keys, which count as asked for."""
        self.ignore(*keys)
        other = Fields({k: v for k, v in self.values.items() if k not in keys}, self.where)
        other._asked = self._asked
        return other

    def not_asked(self) -> list[str]:
        """Keys that weren't read and whose value has an effect: not null, false, zero or empty."""
        return [key for key, value in self.values.items() if value and key not in self._asked]

    def ignore(self, *keys: str) -> None:
        """Counts keys as asked for, which mean nothing here."""
        self._asked.update(keys)

    def __contains__(self, key: str) -> bool:
        self._asked.add(key)
        return self.values.get(key) is not None

    def wrong(self, key: str, wanted: str) -> UnsupportedModel:
        """The error to raise for a value of the wrong kind."""
        shown = repr(self.values.get(key))
        shown = shown if len(shown) <= 80 else f"{shown[:80]}..."
        return UnsupportedModel(f"{self.where}: {key} is {shown}; {wanted} is needed")

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number, which JSON may also write as 512.0."""
        value = self._get(key, default)
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(key, "a whole number")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.wrong(key, "a number")
        try:
            number = float(value)
        except OverflowError:  # a whole number of hundreds of digits
            number = math.inf
        if not math.isfinite(number):
            raise self.wrong(key, "a finite number")
        return number

    def positive(self, key: str, default: float | None = None) -> float:
        """A number above 0."""
        number = self.number(key, default)
        if number <= 0:
            raise self.wrong(key, "a number above 0")
        return number

    def flag(self, key: str, default: bool | None = None) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "a text")
        return value

    def optional_integer(self, key: str) -> int | None:
        return self.integer(key) if key in self else None

    def optional_number(self, key: str) -> float | None:
        return self.number(key) if key in self else None

    def listed(self, key: str, kind: type) -> list[Any]:
        """A list whose elements are all of one type."""
        value = self._get(key, None)
        if not isinstance(value, list) or any(type(item) is not kind for item in value):
            raise self.wrong(key, f"a list of {kind.__name__}")
        return value

    def section(self, key: str) -> Fields:
        """The settings nested under a key; none if it is missing."""
        self._asked.add(key)
        value = self.values.get(key)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise self.wrong(key, "an object")
        return Fields(value, f"{self.where}, {key}")

    def _get(self, key: str, default: Any) -> Any:
        self._asked.add(key)
        value = self.values.get(key)
        if value is not None:
            return value
        if default is None:
            raise UnsupportedModel(f"{self.where}: {key} is missing")
        return default


def keys_below(values: Mapping[str, Any], part: str, where: object) -> Fields:
    """The settings whose keys begin with the part's name and a dot, without these."""
    begin = f"{part}."
    found = {
        key.removeprefix(begin): value for key, value in values.items() if key.startswith(begin)
    }
    return Fields(found, f"{where}, {part}")
