"""How much of each place a gateway takes: `python -m tests.gateway.costs.edges` finds it out and
writes edges.json.

The dearest bodies are those that are just not refused, so products are made of such sizes.  A place
that the file doesn't have yet is tried with sizes that most places take.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from penstock_gateway.http.operations import Operation
from testing.costs.fillers import written
from testing.costs.scene import Scene
from tests.gateway.costs.operations import example, models_of, operations, path_of
from tests.gateway.costs.sites import Filling, Leaf, Many, Site, Table, body_with, sites_of

FILE = Path(__file__).with_name("edges.json")
GROWING = ("list", "table", "text", "any")
LARGEST = {"list": 1 << 20, "table": 1 << 18, "text": 1 << 24, "any": 1 << 22}
STEP = 4
UNKNOWN = {"list": 1024, "table": 1024, "text": 65_536, "any": 65_536}
SCHEMAS = ("json", "guided_json", "json_schema")
"""Texts that must be JSON schemas."""
ENOUGH = 2.0
"""Processor seconds of a turn: what takes more is large enough."""


def filling(site: Site, size: int, kind: str = "words") -> Filling:
    """What makes the place so large. kind: of a text."""
    if site.kind == "list":
        return Many(size)
    if site.kind == "table":
        return Table(size)
    if site.kind == "text" and site.path[-1] in SCHEMAS:
        return Leaf({"$json": {"$schema": [size // 64, 40]}})
    return Leaf({"$text": [kind, size]})


@cache
def edges() -> dict[str, dict[str, int]]:
    """The largest size that is taken, or a quarter of one that isn't, by path and place; 0: none
    is."""
    found: dict[str, dict[str, int]] = json.loads(FILE.read_bytes()) if FILE.exists() else {}
    return found


def _edge(operation: Operation, site: Site, scene: Scene) -> tuple[int, list[Any]]:
    gateway = scene.gateway(models_of(operation)[0])
    size, taken, trail = 1, 0, []
    while size <= LARGEST[site.kind]:
        body = body_with(operation.body, example(operation), {site.path: filling(site, size)})
        content = written(body)
        if len(content) > 33_000_000:
            break
        cost = gateway.cost(path_of(operation), content)
        trail.append((size, cost.status, round(cost.turn.seconds, 4), cost.said[:200]))
        if not 200 <= cost.status < 300:
            break
        taken = size
        if cost.turn.seconds > ENOUGH:
            break
        size *= STEP
    size = taken * 2
    if taken and size < LARGEST[site.kind]:
        body = body_with(operation.body, example(operation), {site.path: filling(site, size)})
        if 200 <= gateway.cost(path_of(operation), written(body)).status < 300:
            taken = size
    return taken, trail


def find(paths: Iterable[str] = ()) -> tuple[dict[str, dict[str, int]], dict[str, Any]]:
    """Asks a gateway of today."""
    found, trails = edges(), {}
    wanted = set(paths)
    with Scene() as scene:
        for operation in operations():
            if wanted and operation.path not in wanted:
                continue
            own = found.setdefault(operation.path, {})
            for site in sites_of(operation.body):
                if site.kind in GROWING:
                    name = f"{site.name} {site.kind}"
                    own[name], trails[f"{operation.path} {name}"] = _edge(operation, site, scene)
            sys.stderr.write(f"{operation.path}: {len(own)}\n")
            FILE.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    return found, trails


if __name__ == "__main__":
    _, trails = find(sys.argv[1:])
    json.dump(trails, sys.stdout)
