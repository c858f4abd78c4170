"""A process' /metrics and health checks as tests read them."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from testing.serving import PATIENCE, Server

PORTS = ("--engine-metrics-port", "0", "--worker-metrics-port", "0")
"""Flags of a server whose ports `port_of` finds."""


class Page:
    """One reading. kinds: of each family, by its name; a counter's is without `_total`."""

    def __init__(self, text: str) -> None:
        self.kinds: dict[str, str] = {}
        self._samples: list[tuple[str, dict[str, str], float]] = []
        for family in text_string_to_metric_families(text):
            self.kinds[family.name] = family.type
            self._samples += [(s.name, dict(s.labels), s.value) for s in family.samples]

    def value(self, name: str, **labels: str) -> float:
        """The one sample that has these labels, and any model_name."""
        (found,) = self.values(name, **labels)
        return found

    def values(self, name: str, **labels: str) -> list[float]:
        """All samples that have at least these labels."""
        return [v for n, has, v in self._samples if n == name and labels.items() <= has.items()]

    def labelled(self, name: str, label: str) -> dict[str, float]:
        """The samples of a family by one label."""
        return {has[label]: value for n, has, value in self._samples if n == name}

    def models(self, prefix: str) -> set[str | None]:
        """The model_name of all samples of that prefix; None where there is none."""
        return {has.get("model_name") for n, has, _ in self._samples if n.startswith(prefix)}


def read_page(url: str, timeout: float = PATIENCE) -> Page:
    """GET url/metrics. Raises OSError."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=timeout) as answer:
        return Page(answer.read().decode())


def port_of(server: Server, process: str) -> str:
    """The latest address at which a process said that it has its metrics port."""
    found = re.findall(rf'process="?{process}"?.*event="metrics port" url=(\S+)', server.stderr)
    assert found, server.stderr[-3000:]
    return str(found[-1])


def health(url: str, path: str = "/health/ready", timeout: float = PATIENCE) -> tuple[int, Any]:
    """Status and body. Raises OSError (TimeoutError is one)."""
    try:
        with urllib.request.urlopen(url + path, timeout=timeout) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)
