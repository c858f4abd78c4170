"""Whether Prometheus sees every process, however many there are, and Grafana shows it."""

from __future__ import annotations

import json
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

SECONDS = 60.0
"""Prometheus asks DNS every 10 s, and a target every 10 s."""
DASHBOARD, SOURCE = "penstock", "prometheus"
"""What deploy/grafana calls them."""


def wait_targets(url: str, wanted: Mapping[str, int]) -> dict[str, int]:
    """How many targets of each job are up, as soon as they are as many as wanted, or at the end of
    the time as they are then."""
    until, found = time.monotonic() + SECONDS, {}
    while time.monotonic() < until:
        try:
            found = _up(url)
        except (OSError, ValueError):
            pass  # it is starting
        if found == dict(wanted):
            break
        time.sleep(1.0)
    return found


def wait_grafana(url: str) -> str:
    """What keeps Grafana from showing the dashboard with data, at the end of the time; empty as
    soon as nothing does. It asks as people do, without a login."""
    until, missing = time.monotonic() + SECONDS, "nothing was asked"
    while time.monotonic() < until:
        try:
            missing = _missing(url)
        except (OSError, ValueError) as error:
            missing = str(error)
        if not missing:
            break
        time.sleep(1.0)
    return missing


def _missing(url: str) -> str:
    if not _ask(f"{url}/api/dashboards/uid/{DASHBOARD}")["dashboard"]["panels"]:
        return "the dashboard has no panels"
    health = _ask(f"{url}/api/datasources/uid/{SOURCE}/health")
    return "" if health["status"] == "OK" else f"Prometheus: {health.get('message', health)}"


def _up(url: str) -> dict[str, int]:
    query = urllib.parse.urlencode({"query": "sum by (job) (up)"})
    rows = _ask(f"{url}/api/v1/query?{query}")["data"]["result"]
    return {row["metric"]["job"]: int(row["value"][1]) for row in rows}


def _ask(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return dict(json.load(answer))
