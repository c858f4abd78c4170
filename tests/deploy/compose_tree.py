"""docker-compose.yml and its overrides, as compose reads them together."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
BASE = "docker-compose.yml"
OVERRIDES = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("deploy/compose.*.yml"))
UNDER = {
    "deploy/compose.tensor-parallel-nvidia.yml": "deploy/compose.tensor-parallel.yml",
    "deploy/compose.s3.yml": "deploy/compose.batches.yml",
    "deploy/compose.redis.yml": "deploy/compose.keys.yml",
    "deploy/compose.two-cells-envoy.yml": "deploy/compose.two-cells.yml",
}
"""Overrides that go on top of another one."""
VARIABLE = re.compile(r"\$\{(\w+)(?::?-([^}]*))?\}")
ADDED_UP = ("volumes", "secrets", "ports")


def load(*files: str) -> dict[str, Any]:
    """The files as compose merges them, every variable at its default."""
    merged: dict[str, Any] = {}
    for file in files:
        text = (ROOT / file).read_text(encoding="utf-8")
        merged = _merge(merged, yaml.safe_load(VARIABLE.sub(lambda m: m[2] or "", text)))
    return merged


def _merge(under: Any, over: Any, key: str = "") -> Any:
    """Compose's rule: mappings are merged, some lists are added up, all else is replaced."""
    if isinstance(under, dict) and isinstance(over, dict):
        both = {name: _merge(under[name], over[name], name) for name in under.keys() & over.keys()}
        return {**under, **over, **both}
    if isinstance(under, list) and isinstance(over, list) and key in ADDED_UP:
        return under + over
    return over


def files_for(override: str) -> list[str]:
    """The files of a call, as people name them."""
    return [BASE, *([UNDER[override]] if override in UNDER else []), override]


def environment_of(service: dict[str, Any]) -> dict[str, Any]:
    """A service's variables; one without a value is handed on where it is set."""
    given: dict[str, Any] = service.get("environment", {})
    return given


TREES = {"base": load(BASE), **{file: load(*files_for(file)) for file in OVERRIDES}}
