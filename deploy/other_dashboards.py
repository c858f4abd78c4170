"""Queries of any Grafana dashboard, as they can be asked of a Prometheus: vLLM's, or your own.

A variable that lists a label's values stands for the first that Prometheus has, or for all of them
where the dashboard allows that; any other stands for the first of its own choices.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from deploy.queries import Query

INTERVALS = {"__rate_interval": "30s", "__interval": "30s", "__range": "1m"}
"""What Grafana sets by itself."""
_LABEL_VALUES = re.compile(r"label_values\((?:.*,)?\s*(\w+)\s*\)", re.DOTALL)


class LabelSource(Protocol):
    """A Prometheus."""

    def label_values(self, label: str) -> list[str]:
        """All that any series has."""
        ...


def dashboard_queries(path: Path, source: LabelSource) -> list[Query]:
    """Every panel's. Raises ValueError for a file that is no dashboard."""
    dashboard = json.loads(path.read_text())
    if not isinstance(dashboard, dict) or not dashboard.get("panels"):
        raise ValueError(f"{path} is no dashboard of Grafana: it has no panels")
    values = INTERVALS | dict(_variables(dashboard, source))
    return [
        Query(f"{path.name}: {panel['title']!r}, {target['refId']}", filled(expression, values))
        for panel in _panels(dashboard["panels"])
        for target in panel.get("targets", ())
        if (expression := target.get("expr"))
    ]


def filled(expression: str, values: Mapping[str, str]) -> str:
    """With values in place of `$name`, `${name}` and `${name:format}`. Raises ValueError for a
    variable that has none."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in values:
            raise ValueError(f"the dashboard does not say what ${name} is, in {expression}")
        return values[name]

    return re.sub(r"\$(?:(\w+)|\{(\w+)(?::\w+)?\})", value, expression)


def _panels(panels: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """All panels, also inside of closed rows."""
    for panel in panels:
        yield panel
        yield from _panels(panel.get("panels", []))


def _variables(dashboard: dict[str, Any], source: LabelSource) -> Iterator[tuple[str, str]]:
    for variable in dashboard.get("templating", {}).get("list", []):
        query = variable.get("query", "")
        text = str(query.get("query", "") if isinstance(query, dict) else query)
        label = _LABEL_VALUES.search(text)
        if label is None:
            # `text : value, text : value`, or values alone.
            yield variable["name"], re.split(r"[,\n]", text)[0].rpartition(" : ")[2].strip()
        elif variable.get("includeAll"):
            yield variable["name"], ".*"
        else:
            yield variable["name"], next(iter(source.label_values(label[1])), "")
