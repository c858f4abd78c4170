"""Every query that this folder has: of the dashboard's panels, of alerts and of recording rules."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parent
DASHBOARD = FOLDER / "grafana" / "dashboards" / "penstock.json"
RULES = FOLDER / "prometheus" / "rules"

_VARIABLES = {"$model": ".*", "$engine": ".*", "$__rate_interval": "30s"}
_THRESHOLD = re.compile(r"\s(?:==|!=|>=|<=|>|<)\s*[0-9.]+(?:\s*\*\s*[0-9.]+)?")
_METRIC = re.compile(r"(?<![\w:\"$])([a-zA-Z_][\w:]*)\s*(?=[{\[])")
_NAMED = re.compile(r"(?<![\w:\"])((?:vllm|penstock):[\w:]+|(?:haproxy|process)_\w+)(?![\w:(])")


@dataclass(frozen=True)
class Query:
    """where: of which panel or rule.  expression: as it can be asked of Prometheus."""

    where: str
    expression: str

    @property
    def metrics(self) -> set[str]:
        """Names of series that it reads, as far as they have a selector or one of our prefixes."""
        return {*_METRIC.findall(self.expression), *_NAMED.findall(self.expression)}


def panels() -> Iterator[dict[str, Any]]:
    """The dashboard's, rows left out, those inside of closed rows not."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for each in [panel, *panel.get("panels", ())]:
            if each["type"] != "row":
                yield each


def of_the_dashboard() -> list[Query]:
    """With all models, all engines, and rates over 30 s."""
    return [
        Query(f"panel {panel['id']} {panel['title']!r}, {target['refId']}", filled(target["expr"]))
        for panel in panels()
        for target in panel["targets"]
    ]


def rules() -> Iterator[dict[str, Any]]:
    """Alerts and recording rules."""
    for path in sorted(RULES.glob("*.yml")):
        for group in yaml.safe_load(path.read_text())["groups"]:
            yield from group["rules"]


def of_the_rules() -> list[Query]:
    """Recording rules as they are; of alerts what they watch, see `watched`."""
    found = []
    for rule in rules():
        if "record" in rule:
            found.append(Query(f"rule {rule['record']}", rule["expr"]))
        else:
            parts = watched(rule["expr"])
            found += [Query(f"alert {rule['alert']}, {i}", e) for i, e in enumerate(parts, 1)]
    return found


def watched(expression: str) -> list[str]:
    """The vectors whose values an alert compares: an alert that does not fire gives no data, but
    what it watches must. Comparisons with numbers are left out, both sides of `and` and `unless`
    are looked at each by itself, and of `absent(X)` it is X."""
    parts = re.split(r"\s(?:and|unless|or)\s+(?:on\s*\([^)]*\)\s*)?", expression)
    plain = [_THRESHOLD.sub("", f" {part.strip()}").strip() for part in parts]
    return [re.sub(r"^absent\((.*)\)$", r"\1", each) for each in plain]


def filled(expression: str) -> str:
    """Without Grafana's variables."""
    for name, value in _VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


def everything() -> list[Query]:
    """All of them."""
    return [*of_the_dashboard(), *of_the_rules()]
