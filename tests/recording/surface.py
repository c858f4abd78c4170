"""What else is promised to the outside: names of metrics, the OpenAPI document, flags, messages."""

from __future__ import annotations

import hashlib
import importlib
import json
import pkgutil
import re
from typing import Any

import msgspec
import msgspec.inspect

import penstock.protocol

LABEL = re.compile(r"(\w+)=")
LONGEST = 400
"""Characters of a message's description; a longer one is told by its digest."""


def metrics(text: str) -> list[str]:
    """Each family with its type, and the names of its samples' labels."""
    found = set(re.findall(r"^# TYPE (.+)$", text, re.MULTILINE))
    for name, labels in re.findall(r"^([\w:]+)(?:\{(.*)\})? ", text, re.MULTILINE):
        found.add(f"{name} {','.join(sorted(LABEL.findall(labels)))}")
    return sorted(found)


def without_prose(document: Any) -> Any:
    """An OpenAPI document without summaries, descriptions, titles and versions."""
    if isinstance(document, dict):
        return {
            name: without_prose(inner)
            for name, inner in document.items()
            if name not in ("description", "summary", "title", "version")
        }
    if isinstance(document, list):
        return [without_prose(inner) for inner in document]
    return document


def resolved(document: dict[str, Any]) -> Any:
    """An OpenAPI document with its schemas where they are used: they are named after classes, and
    their names are no promise."""
    schemas = document.get("components", {}).get("schemas", {})

    def resolve(part: Any, within: tuple[str, ...]) -> Any:
        if isinstance(part, list):
            return [resolve(inner, within) for inner in part]
        if not isinstance(part, dict):
            return part
        name = str(part.get("$ref", "")).removeprefix("#/components/schemas/")
        if name in within:
            return {"$ref": within.index(name)}
        if name in schemas:
            return resolve(schemas[name], (*within, name))
        return {each: resolve(inner, within) for each, inner in part.items()}

    return resolve(document.get("paths"), ())


def flags(table: str) -> list[str]:
    """Flag and default of each row of `penstock config-table`."""
    return [
        f"{flag} {default}".strip()
        for flag, default in re.findall(r"^\| (`--.+?`) \| (.*?) \|", table, re.MULTILINE)
    ]


def messages() -> list[str]:
    """Every struct of the protocol as the wire has it: tag, and the fields' types in order.

    An array has no names on the wire, so theirs are left out.
    """
    found = set()
    for module in pkgutil.walk_packages(penstock.protocol.__path__, "penstock.protocol."):
        for each in vars(importlib.import_module(module.name)).values():
            if isinstance(each, type) and issubclass(each, msgspec.Struct):
                found.add(_wire(msgspec.inspect.type_info(each)))
    return sorted(found)


def _wire(kind: msgspec.inspect.Type) -> str:
    if isinstance(kind, msgspec.inspect.StructType):
        fields = [
            f"{'' if kind.array_like else each.encode_name + ': '}{_wire(each.type)}"
            f"{'' if each.required else '?'}"
            for each in kind.fields
        ]
        whole = f"{kind.tag}({', '.join(fields)})"
        return (
            whole
            if len(whole) < 400
            else f"{kind.tag} {hashlib.sha256(whole.encode()).hexdigest()[:16]}"
        )
    if isinstance(kind, msgspec.inspect.UnionType):
        return " | ".join(sorted(_wire(each) for each in kind.types))
    inner = [
        _wire(value)
        for value in (getattr(kind, name) for name in kind.__struct_fields__)
        if isinstance(value, msgspec.inspect.Type)
    ]
    inner += [_wire(each) for each in getattr(kind, "item_types", ())]
    plain = {
        name: value
        for name, value in ((name, getattr(kind, name)) for name in kind.__struct_fields__)
        if isinstance(value, (int, float, str)) or name == "values"
    }
    name = type(kind).__name__.removesuffix("Type")
    return f"{name}{json.dumps(plain) if plain else ''}{inner or ''}"
