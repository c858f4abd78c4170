"""Envoy with this folder's configuration, as a plain process on this machine."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from deploy.local import FOLDER, answers, ask, found, free_port, running, status, wait

ENVOY_CELLS_CONFIG = FOLDER / "envoy" / "cells.yaml"


@dataclass(frozen=True)
class Envoy:
    """A running Envoy. url: for clients.  operations, admin: host:port of its metrics and health,
    and of what only this machine may ask.  log: the file of what it says."""

    url: str
    operations: str
    admin: str
    log: Path

    def servers(self) -> dict[str, str]:
        """Cell -> UP or DOWN, by its health checks and by how its requests ended."""
        told = json.loads(ask(f"http://{self.admin}/clusters?format=json"))["cluster_statuses"]
        [cells] = [each for each in told if each["name"] == "cells"]
        return {host["hostname"]: _state(host) for host in cells.get("host_statuses", ())}

    def ready(self) -> bool:
        """Whether some cell is in rotation."""
        return status(f"http://{self.operations}/health/ready") == 200


@contextlib.contextmanager
def envoy_cells(
    addresses: Sequence[str],
    folder: Path,
    *,
    load: int | None = None,
    health_ports: Mapping[str, int] = MappingProxyType({}),
) -> Iterator[Envoy]:
    """Envoy in front of cells (HOST:PORT). load: requests that a cell may have, in percent of the
    mean; None: as in the file.  health_ports: address -> port that health checks ask instead.

    Raises NotThere.
    """
    program = found("envoy")
    port, operations, admin = free_port(), free_port(), free_port()
    config, log = folder / "envoy-cells.yaml", folder / "envoy-cells.log"
    rendered = rendered_cells(addresses, {8000: port, 8404: operations, 9901: admin}, load)
    [cells] = [each for each in rendered["static_resources"]["clusters"] if each["name"] == "cells"]
    for address, each in zip(addresses, endpoints(cells), strict=True):
        if address in health_ports:
            each["health_check_config"] = {"port_value": health_ports[address]}
    config.write_text(yaml.safe_dump(rendered))
    command = [program, "--config-path", str(config), "--use-dynamic-base-id"]
    # One thread that serves, so that whoever has seen a cell come or go has seen it for all.
    command += ["--concurrency", "1"]
    with running(command, log, {}) as process:
        made = Envoy(
            f"http://127.0.0.1:{port}", f"127.0.0.1:{operations}", f"127.0.0.1:{admin}", log
        )
        wait(lambda: answers(f"http://{made.operations}/health/live"), process, log)
        yield made


def rendered_cells(
    addresses: Sequence[str], ports: dict[int, int], load: int | None = None
) -> dict[str, Any]:
    """cells.yaml with other cells, and with ports of loopback instead of its own."""
    config: dict[str, Any] = yaml.safe_load(ENVOY_CELLS_CONFIG.read_text())
    resources = config["static_resources"]
    clusters = {each["name"]: each for each in resources["clusters"]}
    listening = [config["admin"], *resources["listeners"], *endpoints(clusters["admin"])]
    for each in listening:
        address = each["address"]["socket_address"]
        address |= {"address": "127.0.0.1", "port_value": ports[address["port_value"]]}
    cells = clusters["cells"]
    endpoints_of_cells = [_endpoint(n, each) for n, each in enumerate(addresses, 1)]
    cells["load_assignment"]["endpoints"] = [{"lb_endpoints": endpoints_of_cells}]
    if load is not None:
        hashing = cells["common_lb_config"]["consistent_hashing_lb_config"]
        hashing["hash_balance_factor"] = load
    return config


def endpoints(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the endpoints of a cluster's only locality."""
    [locality] = cluster["load_assignment"]["endpoints"]
    return [each["endpoint"] for each in locality["lb_endpoints"]]


def _endpoint(number: int, address: str) -> dict[str, Any]:
    host, port = address.rsplit(":", 1)
    at = {"socket_address": {"address": host, "port_value": int(port)}}
    return {"endpoint": {"hostname": f"cell{number}", "address": at}}


def _state(host: dict[str, Any]) -> str:
    health = host["health_status"]
    failed = [name for name, value in health.items() if name.startswith("failed") and value]
    return "DOWN" if failed or health.get("pending_active_hc") else "UP"
