"""haproxy and Prometheus with this folder's configuration, and Redis, as plain processes on this
machine."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parent
HAPROXY_CONFIG = FOLDER / "haproxy" / "haproxy.cfg"
CELLS_CONFIG = FOLDER / "haproxy" / "cells.cfg"
PROMETHEUS_CONFIG = FOLDER / "prometheus" / "prometheus.yml"
PATIENCE = 120.0
GRACE = 30.0
PORT_TRIES = 100


class NotThere(Exception):
    """A program that is needed is not installed, or left at once. Says which and why."""


@dataclass(frozen=True)
class Balancer:
    """A running haproxy. url: for clients.  operations: host:port of its metrics and health.
    log: the file of what it says.  backend: what its servers are, gateways or cells."""

    process: subprocess.Popen[bytes]
    url: str
    port: int
    operations: str
    log: Path
    backend: str = "gateways"

    def servers(self) -> dict[str, str]:
        """Gateway, or cell -> UP, DOWN, MAINT…"""
        found = {}
        for line in ask(f"http://{self.operations}/;csv").splitlines():
            fields = line.split(",")
            if fields[0] == self.backend and fields[1].startswith(self.backend[:-1]):
                found[fields[1]] = fields[17]
        return found

    def ready(self) -> bool:
        """Whether some gateway or cell is in rotation."""
        return status(f"http://{self.operations}/health/ready") == 200


@contextlib.contextmanager
def haproxy(
    gateways: Sequence[str], folder: Path, *, settings: Mapping[str, str] | None = None
) -> Iterator[Balancer]:
    """haproxy in front of `gateways` (HOST:PORT, at most four). settings: PENSTOCK_* variables.

    Raises NotThere.
    """
    variables = {f"PENSTOCK_GATEWAY_{i}": each for i, each in enumerate(gateways, 1)}
    with _balancer(HAPROXY_CONFIG, "gateways", folder, {**variables, **(settings or {})}) as made:
        yield made


@contextlib.contextmanager
def cells(
    addresses: Sequence[str], folder: Path, *, settings: Mapping[str, str] | None = None
) -> Iterator[Balancer]:
    """haproxy in front of cells (HOST:PORT, two to eight). settings: PENSTOCK_* variables.

    Raises NotThere.
    """
    variables = {f"PENSTOCK_CELL_{i}": each for i, each in enumerate(addresses, 1)}
    with _balancer(CELLS_CONFIG, "cells", folder, {**variables, **(settings or {})}) as made:
        yield made


@contextlib.contextmanager
def _balancer(
    config: Path, backend: str, folder: Path, settings: Mapping[str, str]
) -> Iterator[Balancer]:
    program = found("haproxy")
    port, operations = free_port(), f"127.0.0.1:{free_port()}"
    own = {"PENSTOCK_HTTP_BIND": f"127.0.0.1:{port}", "PENSTOCK_STATS_BIND": operations}
    log = folder / f"haproxy-{backend}.log"
    command = [program, "-db", "-f", str(config)]
    with running(command, log, {**own, **settings}) as process:
        url = f"http://127.0.0.1:{port}"
        balancer = Balancer(process, url, port, operations, log, backend)
        wait(lambda: answers(f"http://{operations}/health/live"), process, log)
        yield balancer


@dataclass(frozen=True)
class Prometheus:
    """A running Prometheus. url: of its API."""

    url: str

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The instant vector, now. Raises ValueError with what Prometheus says against it."""
        words = urllib.parse.urlencode({"query": expression})
        return list(self._get(f"/api/v1/query?{words}")["result"])

    def label_values(self, label: str) -> list[str]:
        """All that any series has."""
        return list(self._get(f"/api/v1/label/{label}/values"))

    def targets(self) -> dict[str, str]:
        """Scrape address -> up, down or unknown."""
        found = self._get("/api/v1/targets?state=active")["activeTargets"]
        return {each["scrapeUrl"]: each["health"] for each in found}

    def _get(self, path: str) -> Any:
        try:
            return json.loads(ask(self.url + path))["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise ValueError(error.read().decode(errors="replace")) from error


@contextlib.contextmanager
def prometheus(
    targets: Mapping[str, Sequence[str]], folder: Path, *, token: str | None = None
) -> Iterator[Prometheus]:
    """Prometheus with our jobs and rules, which asks every second. targets: job -> HOST:PORT of
    each process.  token: an admin's API key, for the gateways.  Raises NotThere."""
    program = found("prometheus")
    config = folder / "prometheus.yml"
    config.write_text(yaml.safe_dump(rendered(targets, token)))
    port = free_port()
    command = [program, f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    command.append(f"--web.listen-address=127.0.0.1:{port}")
    log = folder / "prometheus.log"
    with running(command, log, {}) as process:
        url = f"http://127.0.0.1:{port}"
        wait(lambda: answers(url + "/-/ready"), process, log)
        yield Prometheus(url)


@contextlib.contextmanager
def redis(folder: Path) -> Iterator[str]:
    """A redis-server that keeps nothing on a disk; its URL. Raises NotThere."""
    port = free_port()
    command = [found("redis-server"), "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    with running([*command, "--dir", str(folder)], folder / "redis.log", {}):
        yield f"redis://127.0.0.1:{port}/0"


def rendered(targets: Mapping[str, Sequence[str]], token: str | None) -> dict[str, Any]:
    """prometheus.yml with fixed addresses instead of names, and one second instead of its own."""
    config: dict[str, Any] = yaml.safe_load(PROMETHEUS_CONFIG.read_text())
    config["global"] |= {
        "scrape_interval": "1s",
        "scrape_timeout": "1s",
        "evaluation_interval": "1s",
    }
    config["rule_files"] = [str(FOLDER / "prometheus" / "rules" / "*.yml")]
    for job in config["scrape_configs"]:
        for name in ("dns_sd_configs", "authorization"):
            job.pop(name, None)
        job["static_configs"] = [{"targets": list(targets.get(job["job_name"], ()))}]
        if token and job["job_name"] == "gateway":
            job["authorization"] = {"credentials": token}
    return config


@contextlib.contextmanager
def running(
    command: Sequence[str], log: Path, variables: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is stopped at the end. log: the file of what it says."""
    with (
        log.open("wb") as written,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
            env={**os.environ, **variables},
        ) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                process.kill()


def found(program: str) -> str:
    """Its path; beside Python are those that came as a package. Raises NotThere."""
    others = f"/usr/sbin:/usr/local/sbin:{Path(sys.executable).parent}"
    path = shutil.which(program) or shutil.which(program, path=others)
    if path is None:
        raise NotThere(f"{program} is not installed")
    return path


def wait(
    condition: Any,
    process: subprocess.Popen[bytes],
    log: Path,
    seconds: float = PATIENCE,
    pause: float = 0.05,
) -> None:
    """Until it is so. Raises NotThere when the process leaves first, or after so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            words = log.read_text(errors="replace")[-2000:]
            raise NotThere(f"{process.args!r} did not come up:\n{words}")
        time.sleep(pause)


def ask(url: str) -> str:
    """The body of a GET."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read(), "utf-8")


def status(url: str) -> int:
    """The status of a GET; 0: nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except OSError:
        return 0


def answers(url: str) -> bool:
    """Whether a GET is a 200."""
    return status(url) == 200


def free_port() -> int:
    """A port of loopback that nobody has just now, and that the kernel gives to nobody who asks for
    any: below its range for outgoing connections, as Linux has it by default.

    Raises OSError where PORT_TRIES ports can't be had.
    """
    for _ in range(PORT_TRIES - 1):
        with contextlib.suppress(OSError):
            return _some_port()
    return _some_port()


def _some_port() -> int:
    """Raises OSError where it can't be bound."""
    port = random.randrange(20_000, 32_000)
    socket.create_server(("127.0.0.1", port)).close()
    return port
