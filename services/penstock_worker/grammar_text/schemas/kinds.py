"""Which types a schema's documents may have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock_worker.grammar_text.schemas.keywords import NARROWED, TYPES
from penstock_worker.grammar_text.schemas.values import listed, type_of

_DEPTH = 12


def kinds_of(schema: Any, definitions: Mapping[str, Any], depth: int = _DEPTH) -> frozenset[str]:
    """Returns which of keywords.TYPES the schema's documents may have, and maybe more.

    definitions: by reference, what has been rewritten so far.
    """
    if schema is False:
        return frozenset()
    found = frozenset(TYPES)
    if not isinstance(schema, dict) or not depth or NARROWED in schema:
        return found
    if "type" in schema:
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        found &= {"number" if each == "integer" else each for each in types if type(each) is str}
    values = listed(schema)
    if values is not None:
        found &= set(map(type_of, values))
    if schema.get("$ref") in definitions:
        found &= kinds_of(definitions[schema["$ref"]], definitions, depth - 1)
    for part in schema.get("allOf", ()):
        found &= kinds_of(part, definitions, depth - 1)
    for name in ("anyOf", "oneOf"):
        if schema.get(name):
            options = [kinds_of(each, definitions, depth - 1) for each in schema[name]]
            found &= frozenset().union(*options)
    return found
