"""Whether Prometheus sees every process, however many there are."""

from __future__ import annotations

import json
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping

SECONDS = 60.0
"""Prometheus asks DNS every 10 s, and a target every 10 s."""


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


def _up(url: str) -> dict[str, int]:
    query = urllib.parse.urlencode({"query": "sum by (job) (up)"})
    with urllib.request.urlopen(f"{url}/api/v1/query?{query}", timeout=5) as answer:
        rows = json.load(answer)["data"]["result"]
    return {row["metric"]["job"]: int(row["value"][1]) for row in rows}
