"""Writes the reference's pages: `python -m tests.reference.generate`, or only the pages that it is
given.

For endpoints and metrics it starts small systems, asks them, and stops them again.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tests.reference.endpoints import endpoints_page
from tests.reference.families import families_page
from tests.reference.formats import formats_page
from tests.reference.pages import commands_page, metrics_page, settings_page
from tests.reference.weights import weights_page

FOLDER = Path(__file__).parents[2] / "docs/reference"
PORT_FLAGS = ("--engine-metrics-port", "--worker-metrics-port")
PATIENCE = 180.0
"""Seconds that the system gets to be ready."""


def main() -> None:
    """Writes the pages that the command line names, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.reference.generate")
    parser.add_argument("pages", nargs="*", metavar="page", help=", ".join(MAKERS))
    names = parser.parse_args().pages or list(MAKERS)
    for name in names:
        if name not in MAKERS:
            parser.error(f"no page is called {name!r}; there are {', '.join(MAKERS)}")
    for name in names:
        (FOLDER / f"{name}.md").write_text(MAKERS[name](), encoding="utf-8")


@cache
def _usual_system() -> tuple[str, str]:
    """Returns the OpenAPI document and the metrics of a system without flags."""
    with _system() as [port]:
        return get(port, "/openapi.json"), metrics_after_a_request(port)


def _endpoints() -> str:
    return endpoints_page(json.loads(_usual_system()[0]))


def _metrics() -> str:
    plain = _usual_system()[1]
    with _system(*PORT_FLAGS, policy="fair") as ports:
        metrics_after_a_request(ports[0])
        return metrics_page(plain, *(get(port, "/metrics") for port in ports))


MAKERS: dict[str, Callable[[], str]] = {
    "settings": settings_page,
    "commands": commands_page,
    "families": families_page,
    "formats": formats_page,
    "weights": weights_page,
    "endpoints": _endpoints,
    "metrics": _metrics,
}
"""The function that makes each page, by the page's name."""


def metrics_after_a_request(port: int) -> str:
    """What /metrics says after a request, before which some labels have no values."""
    body = json.dumps({"prompt": "Hello", "max_tokens": 1}).encode()
    get(port, "/v1/completions", body)
    return get(port, "/metrics")


def get(port: int, path: str, body: bytes | None = None) -> str:
    """What a local server answers. body: is posted, as JSON."""
    headers = {"content-type": "application/json"} if body else {}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, headers)
    with urllib.request.urlopen(request, timeout=60) as reply:
        return str(reply.read().decode())


@contextmanager
def _system(*port_flags: str, policy: str = "fcfs") -> Iterator[list[int]]:
    """A ready system; its HTTP port, then the port given to each of the flags."""
    ports = [free_port() for _ in ("--port", *port_flags)]
    flags = zip(("--port", *port_flags), map(str, ports), strict=True)
    arguments = [word for pair in flags for word in pair]
    arguments += ["--scheduling-policy", policy]
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "serve", *arguments], stdout=subprocess.DEVNULL
    )
    try:
        _wait_ready(process, ports[0])
        yield ports
    finally:
        process.terminate()
        process.wait(30)


def _wait_ready(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        try:
            get(port, "/health/ready")
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise RuntimeError("the system did not become ready; its log says why")


def free_port() -> int:
    """A port of loopback that is free at the moment."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


if __name__ == "__main__":
    main()
