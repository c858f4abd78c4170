"""Values that models write as plain text or as Python, as JSON text."""

from __future__ import annotations

import ast
import json
from typing import Any, NoReturn

MAX_REFERENCES = 16
"""References and alternatives that are followed to find a parameter's types."""
_KINDS: dict[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}
_WORDS = {"true": True, "false": False, "null": None}


def json_string(text: str) -> str:
    """A JSON string, quotes included."""
    return json.dumps(text, ensure_ascii=False)


def parameter(schema: Any, name: str) -> Any:
    """The schema of one of an object's properties; None where it says nothing about it."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return properties.get(name) if isinstance(properties, dict) else None


def types_of(schema: Any, root: Any) -> frozenset[str] | None:
    """The types that values of a schema may have; None: any. root: what its references are in."""
    found: set[str] = set()
    return frozenset(found) if _collect(schema, root, found, [MAX_REFERENCES]) else None


def _collect(schema: Any, root: Any, found: set[str], left: list[int]) -> bool:
    """Returns whether the schema limits the types at all."""
    left[0] -= 1
    if not isinstance(schema, dict) or left[0] < 0:
        return False
    named = schema.get("type")
    if isinstance(named, str):
        found.add(named)
        return True
    if isinstance(named, list) and named:
        found.update(each for each in named if isinstance(each, str))
        return True
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list) and values:
        found.update(_KINDS.get(type(value), "string") for value in values)
        return True
    for key in ("anyOf", "oneOf"):
        branches = schema.get(key)
        if isinstance(branches, list) and branches:
            return all(_collect(branch, root, found, left) for branch in branches)
    every = schema.get("allOf")
    if isinstance(every, list) and any(_collect(part, root, found, left) for part in every):
        return True
    if "properties" in schema:
        found.add("object")
        return True
    target = _target(schema.get("$ref"), root)
    return target is not None and _collect(target, root, found, left)


def _target(reference: Any, root: Any) -> Any:
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    for step in reference[2:].split("/"):
        step = step.replace("~1", "/").replace("~0", "~")
        root = root.get(step) if isinstance(root, dict) else None
    return root


def branch(schema: Any, root: Any, kind: str) -> Any:
    """What a schema says of values of a type, where it refers to it or has it among others."""
    for _ in range(MAX_REFERENCES):
        if not isinstance(schema, dict):
            return None
        target = _target(schema.get("$ref"), root)
        others = [each for key in ("anyOf", "oneOf", "allOf") for each in schema.get(key) or ()]
        if target is None:
            target = next((each for each in others if kind in (types_of(each, root) or ())), None)
        if target is None:
            break
        schema = target
    return schema


def is_text(types: frozenset[str] | None) -> bool:
    """Whether a value can be nothing but a string, whatever its text."""
    return types is not None and types == frozenset({"string"})


def typed(text: str, types: frozenset[str] | None) -> str:
    """A value's text as JSON of one of the types. JSON, or Python's way of writing it, if that is
    of one of them; else a string."""
    stripped = text.strip()
    for read in (as_json, _as_python):
        found = read(stripped)
        if found is not None and _allowed(found[0], types):
            return found[1]
    return json_string(text)


def _allowed(value: Any, types: frozenset[str] | None) -> bool:
    if types is None:
        return True
    kind = _KINDS.get(type(value), "")
    return kind in types or (kind == "integer" and "number" in types)


def as_json(text: str) -> tuple[Any, str] | None:
    """The value, and its text; None where it is no JSON. Line breaks in strings are forgiven."""
    try:
        return json.loads(text, parse_constant=_refuse), text
    except (ValueError, RecursionError):
        pass
    try:
        value = json.loads(text, strict=False, parse_constant=_refuse)
        return value, python_json(value)
    except (ValueError, RecursionError):
        return None


def _as_python(text: str) -> tuple[Any, str] | None:
    try:
        node = ast.parse(text, mode="eval").body
        value = python_value(node)
        return value, python_json(value)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def python_value(node: ast.expr) -> Any:
    """The value of a literal; true, false and null too. Raises ValueError for anything else."""
    if isinstance(node, ast.Constant):
        if type(node.value) in _KINDS:
            return node.value
    elif isinstance(node, ast.Name) and node.id in _WORDS:
        return _WORDS[node.id]
    elif isinstance(node, ast.List | ast.Tuple | ast.Set):
        return [python_value(each) for each in node.elts]
    elif isinstance(node, ast.Dict):
        return {
            _key(key): python_value(value)
            for key, value in zip(node.keys, node.values, strict=True)
        }
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = python_value(node.operand)
        if type(value) in (int, float):
            return -value if isinstance(node.op, ast.USub) else value
    raise ValueError("no literal")


def python_json(value: Any) -> str:
    """JSON of a Python value. Two halves of a surrogate pair, which Python doesn't join, are one
    character. Raises ValueError for infinite numbers."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    # Escapes of lone surrogates are no text.
    return joined.encode("utf-8", "replace").decode()


def _key(node: ast.expr | None) -> str:
    value = python_value(node) if node is not None else None
    if not isinstance(value, str):
        raise ValueError("a key that is no string")
    return value


def _refuse(constant: str) -> NoReturn:
    """NaN and the infinities, which aren't JSON."""
    raise ValueError(constant)
