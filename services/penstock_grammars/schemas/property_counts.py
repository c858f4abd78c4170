"""`minProperties` and `maxProperties` of objects that list properties which may be left out.

llguidance counts only where all listed properties are required: so each way to have enough of them
becomes an object of its own.  It also doesn't notice that a name comes twice, and so can't be
trusted to count to two.
"""

from __future__ import annotations

from itertools import combinations
from math import comb
from typing import Any

from penstock_grammars.schemas.combining import any_of, part_of_object
from penstock_grammars.schemas.keywords import Schema, Unservable

MAX_WAYS = 64


def counted(node: dict[str, Any]) -> dict[str, Any]:
    """The node with its bounds said otherwise, if they have to be. Raises Unservable."""
    if "minProperties" not in node and "maxProperties" not in node:
        return node
    node = _needed(node)
    least, most = node.get("minProperties", 0), node.get("maxProperties")
    properties, required = node.get("properties", {}), set(node.get("required", ()))
    optional = [n for n, each in properties.items() if n not in required and each is not False]
    closed = node.get("additionalProperties") is False and not node.get("patternProperties")
    if most is not None and most < len(required):
        return node
    if not closed and least - len(required) > 1 + len(optional):
        raise Unservable(
            f"minProperties is {least}, and names that the schema doesn't list might repeat: at "
            f"most {len(required) + len(optional) + 1} can be asked for here"
        )
    if not optional or (least == 0 and most is None):
        return node
    return _by_ways(node, optional, least - len(required), most, closed)


def _needed(node: dict[str, Any]) -> dict[str, Any]:
    """Returns the node without bounds that hold anyway."""
    node = dict(node)
    least, most = node.get("minProperties", 0), node.get("maxProperties")
    listed = [each for each in node.get("properties", {}).values() if each is not False]
    if least <= len(set(node.get("required", ()))):
        node.pop("minProperties", None)
    alone = node.get("additionalProperties") is False and not node.get("patternProperties")
    if most is not None and alone and most >= len(listed):
        del node["maxProperties"]
    return node


def _by_ways(
    node: dict[str, Any], optional: list[str], least: int, most: int | None, closed: bool
) -> dict[str, Any]:
    required = len(set(node.get("required", ())))
    top = len(optional) if most is None else min(most - required, len(optional))
    bottom = max(0, least)
    if most is None:  # The first ones that are there, and any after them.
        sizes, exact = range(0 if not closed else bottom, bottom + 1), False
    else:
        sizes, exact = range(0 if not closed else bottom, top + 1), True
    if sum(comb(len(optional), size) for size in sizes) > MAX_WAYS:
        raise Unservable(
            "minProperties and maxProperties leave too many ways to choose among "
            f"{len(optional)} optional properties"
        )
    ways: list[Schema] = []
    for size in sizes:
        for chosen in combinations(optional, size):
            enough = size >= bottom
            absent = _absent(optional, chosen, all_others=exact or not enough)
            rest = {} if enough and (most is None or closed) else _rest(node)
            if not enough and least - size > 1:
                continue  # Names that aren't listed might be the same.
            way = part_of_object(properties=dict.fromkeys(absent, False), required=list(chosen))
            ways.append(way | rest)
    bounds = ("minProperties", "maxProperties")
    made = {name: each for name, each in node.items() if name not in bounds}
    if "anyOf" in made:
        made["allOf"] = [*made.get("allOf", ()), any_of(ways)]
    else:
        made["anyOf"] = ways
    return made


def _absent(optional: list[str], chosen: tuple[str, ...], *, all_others: bool) -> list[str]:
    if all_others or not chosen:
        return [name for name in optional if all_others and name not in chosen]
    before = optional[: optional.index(chosen[-1])]
    return [name for name in before if name not in chosen]


def _rest(node: dict[str, Any]) -> dict[str, Any]:
    return {name: node[name] for name in ("minProperties", "maxProperties") if name in node}
