"""A request's query parameters, checked against what its operation says of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from penstock.errors import InvalidRequest
from penstock_gateway.http.errors import clip

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Scope

Parameters = Mapping[str, tuple[str, dict[str, Any]]]
"""What each means, and its JSON schema: a string, integer or boolean, with an enum or bounds, or an
array of such."""

_SCOPE = "penstock.query"
_FLAGS = {"true": True, "false": False, "1": True, "0": False}


def take_query(scope: Scope, known: Parameters, *, skips_unknown: bool) -> None:
    """Reads the parameters for `asked`. Raises InvalidRequest for one that is unknown, senseless or
    given twice.

    skips_unknown: unknown ones are no error."""
    found: dict[str, list[str]] = {}
    text = scope["query_string"].decode("latin-1")
    for name, value in parse_qsl(text, keep_blank_values=True):
        # A list may be marked as one, as OpenAI's SDKs do it.
        bare = name.removesuffix("[]")
        name = bare if name not in known and _is_list(known, bare) else name
        if name in known:
            found.setdefault(name, []).append(value)
        elif not skips_unknown:
            allowed = ", ".join(known) or "none"
            raise InvalidRequest(f"unknown parameter {clip(name)}; allowed: {allowed}", param=name)
    scope[_SCOPE] = {
        name: _read(name, found.get(name, []), schema) for name, (_, schema) in known.items()
    }


def asked(request: Request, name: str) -> Any:
    """A parameter's value; of one that wasn't given its default, or None; of a list, a list."""
    return request.scope[_SCOPE][name]


def _is_list(known: Parameters, name: str) -> bool:
    return name in known and known[name][1]["type"] == "array"


def _read(name: str, given: list[str], schema: dict[str, Any]) -> Any:
    if schema["type"] == "array":
        return [_value(name, each, schema["items"]) for each in given]
    if len(given) > 1:
        raise InvalidRequest(f"{name} is given {len(given)} times; allowed: once", param=name)
    return _value(name, given[0], schema) if given else schema.get("default")


def _value(name: str, given: str, schema: dict[str, Any]) -> Any:
    value: Any = given
    if schema["type"] == "integer":
        value = _whole(given)
        least, most = schema.get("minimum"), schema.get("maximum")
        if value is not None and (least is None or value >= least):
            value = value if most is None or value <= most else None
        else:
            value = None
        bounds = f" in [{least}, {most}]" if most is not None else f" ≥ {least}"
        allowed = f"it must be a whole number{bounds if least is not None else ''}"
    elif schema["type"] == "boolean":
        value = _FLAGS.get(given)
        allowed = "allowed: true, false"
    if "enum" in schema:
        value = value if value in schema["enum"] else None
        allowed = f"allowed: {', '.join(map(str, schema['enum']))}"
    if value is None:
        raise InvalidRequest(f"{name} is {clip(given)}; {allowed}", param=name)
    return value


def _whole(text: str) -> int | None:
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) <= 18 else None
