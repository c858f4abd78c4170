"""The reference's page about endpoints, from the OpenAPI document of a running gateway."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from penstock_dialects.anthropic.request import ConversationFields
from penstock_dialects.llamacpp.request import LlamaFields
from penstock_dialects.ollama.request import OllamaFields
from penstock_gateway.pooling.fields import PoolFields, VectorFields
from penstock_gateway.request.fields import GenerateFields, RequestFields
from penstock_gateway.transcription.request import SpeechFields
from tests.reference.pages import WRITTEN

SHARED: Mapping[str, type[msgspec.Struct]] = {
    "Every answer": RequestFields,
    "Sampling": GenerateFields,
    "Messages": ConversationFields,
    "Ollama": OllamaFields,
    "llama-server": LlamaFields,
    "Speech": SpeechFields,
    "Pooling": PoolFields,
    "Vectors": VectorFields,
}
"""Classes of fields that several bodies have, by their heading; a base stands before its heirs."""

Fields = dict[str, str]
"""The type of each field of a body, by its name; REQUIRED stands before that of a required one."""
REQUIRED = "!"


def endpoints_page(document: Mapping[str, Any]) -> str:
    """Every operation, and the fields of the bodies. document: a gateway's /openapi.json."""
    schemas = document["components"]["schemas"]
    operations = [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    closed = {path for _, path, each in operations if each["security"]}
    opened = ", ".join(
        f"`{f'{method.upper()} ' if path in closed else ''}{path}`"
        for method, path, each in operations
        if not each["security"]
    )
    bodies = dict.fromkeys(body for *_, each in operations if (body := _body(each)))
    return (
        f"# Endpoints\n\n{WRITTEN}\n"
        "A running server shows the same, with its nested objects, at `/docs`, and as OpenAPI 3.1 "
        "at `/openapi.json`. The guide has [examples](../guides/api.md) and "
        "[headers](../guides/api.md#headers).\n\n"
        f"If the server has API keys, every path needs one except {opened}; `/live` needs an "
        "admin's key, and `/metrics` that or one with `metrics`.\n\n"
        + "".join(f"- {paths}: {words}\n" for (_, words), paths in _by_words(operations).items())
        + _bodies({name: schemas[name] for name in bodies})
    )


def _by_words(
    operations: Iterable[tuple[str, str, Mapping[str, Any]]],
) -> dict[tuple[str, str], str]:
    """Methods and what they do, each with the paths that do it: an alias beside its original."""
    found: dict[tuple[str, str], str] = {}
    for method, path, operation in operations:
        body = _body(operation)
        words = f"{operation['summary']}{f': [{body}](#{body.lower()})' if body else ''}"
        key = (method, words)
        found[key] = f"{found[key]}, `{path}`" if key in found else f"`{method} {path}`"
    return found


def _body(operation: Mapping[str, Any]) -> str:
    """The name of an operation's body; empty: it takes none, or that of any other operation."""
    if "requestBody" not in operation:
        return ""
    (content,) = operation["requestBody"]["content"].values()
    return str(content["schema"].get("$ref", "").rpartition("/")[2])


def _bodies(schemas: Mapping[str, Any]) -> str:
    """The fields of each body, those that it shares with others by a link to their group."""
    groups = _groups()
    text = (
        "\n## Bodies\n\n"
        "Unknown fields are refused, or skipped with `--unknown-fields ignore`. In messages and "
        "their parts, and in tools, they are always skipped. Required fields are **bold**. "
        "Fields that several bodies have come first, in groups.\n"
    )
    text += "".join(f"\n### {name}\n\n{_listed(fields)}" for name, fields in groups.items())
    return text + "".join(_body_of(name, _fields(each), groups) for name, each in schemas.items())


def _body_of(name: str, fields: Fields, groups: Mapping[str, Fields]) -> str:
    """A body's section: links to the groups that it has all fields of, and its other fields."""
    rest = dict(fields)
    links = []
    for group, shared in groups.items():
        if shared.items() <= fields.items() and shared.keys() & rest.keys():
            links.append(f"[{group}](#{group.lower().replace(' ', '-')})")
            rest = {field: kind for field, kind in rest.items() if field not in shared}
    text = f"\n### {name}\n"
    if links:
        text += f"\nGroups: {', '.join(links)}.\n"
    return text + (f"\n{_listed(rest)}" if rest else "")


def _groups() -> dict[str, Fields]:
    """The fields of each shared class without those of its bases."""
    _, components = msgspec.json.schema_components(
        SHARED.values(), ref_template="#/components/schemas/{name}"
    )
    found = {kind: _fields(components[kind.__name__]) for kind in SHARED.values()}
    groups: dict[str, Fields] = {}
    for name, kind in SHARED.items():
        inherited = {field for base in kind.__mro__[1:] for field in found.get(base, ())}
        groups[name] = {
            field: each for field, each in found[kind].items() if field not in inherited
        }
    return groups


def _fields(schema: Mapping[str, Any]) -> Fields:
    """The type of each field as it is shown; a required one is marked by a leading REQUIRED."""
    required = schema.get("required", ())
    return {
        field: f"{REQUIRED if field in required else ''}{_type(kind)}"
        for field, kind in sorted(schema["properties"].items())
    }


def _listed(fields: Fields) -> str:
    """A list of types, each with the fields that have it."""
    lines = []
    for kind in sorted({each.removeprefix(REQUIRED) for each in fields.values()}):
        names = [
            f"**`{name}`**" if each.startswith(REQUIRED) else f"`{name}`"
            for name, each in fields.items()
            if each.removeprefix(REQUIRED) == kind
        ]
        lines.append(f"- {kind}: {', '.join(names)}\n")
    return "".join(lines)


def _type(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        kinds = [_type(each) for each in schema["anyOf"] if each.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds)) or "null"
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"] if value is not None)
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("type", "anything"))
