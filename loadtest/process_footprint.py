"""Memory and start-up time of a gateway and an engine core, the two processes without torch.

    python -m loadtest.process_footprint [--model M] [--repeat 5] [--requests 32]

Start to ready is from starting the process until it is of use: an engine core that has welcomed a
front end; a gateway whose /health/ready says 200, with an engine core already running over a worker
that computes nothing.  RSS is what the kernel reports, when ready and after some chat requests.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from tqdm import tqdm

from loadtest.report.facts import machine_line
from loadtest.report.files import Report, parser
from penstock.bench.load.report import markdown_table
from penstock.client import EngineClient
from penstock.prepare import prepare
from testing.processes import engine, front_end, gateway, worker

PROGRAM = "-m loadtest.process_footprint"
PATIENCE = 120.0


def main() -> int:
    command = parser(PROGRAM, __doc__.splitlines()[0])
    command.add_argument("--model", default="smollm2-135m")
    command.add_argument("--repeat", type=int, default=5, help="starts of each process")
    command.add_argument("--requests", type=int, default=32, help="chat requests before RSS again")
    flags = command.parse_args()
    report = Report("process_footprint", PROGRAM, flags)
    figures = measure(flags.model, flags.repeat, flags.requests)
    report.finish(figures, lambda facts: f"{machine_line(facts)}\n\n{table(figures)}")
    return 0


def measure(model: str, repeat: int, requests: int) -> dict[str, Any]:
    """Per process: start-to-ready seconds of each start, RSS in MiB ready and after requests."""
    model_dir = prepare(model)
    with tqdm(total=2 * repeat, desc="starts") as bar, folder() as place:
        core: dict[str, Any] = {"ready_seconds": []}
        for _ in range(repeat):
            core["ready_seconds"].append(asyncio.run(time_engine(model_dir)))
            bar.update()
        with engine(place, model_dir, ()) as system, worker(place, model_dir, 0.0):
            with gateway(front_end(place)):
                core["rss_ready_mib"] = rss_mib(system.pid)
            gateways = time_gateways(front_end(place), repeat, requests, bar)
            core["rss_after_mib"] = rss_mib(system.pid)
    return {"model": model, "requests": requests, "engine core": core, "gateway": gateways}


@contextmanager
def folder() -> Iterator[Path]:
    """A short path, for sockets."""
    with tempfile.TemporaryDirectory(prefix="pst-") as made:
        yield Path(made)


async def time_engine(model_dir: Path) -> float:
    """Seconds from starting an engine core until it has welcomed a front end."""
    with folder() as place:
        client = EngineClient(front_end(place), name="footprint")
        await client.start()
        begun = time.perf_counter()
        with engine(place, model_dir, ()):
            try:
                await client.wait_connected(PATIENCE)
                return time.perf_counter() - begun
            finally:
                await client.close()


def time_gateways(endpoint: str, repeat: int, requests: int, bar: Any) -> dict[str, Any]:
    figures: dict[str, Any] = {"ready_seconds": []}
    for number in range(repeat):
        with gateway(endpoint) as started:
            figures["ready_seconds"].append(started.ready_s)
            figures["rss_ready_mib"] = rss_mib(started.pid)
            if number == repeat - 1:
                for _ in range(requests):
                    chat(started.url)
                figures["rss_after_mib"] = rss_mib(started.pid)
        bar.update()
    return figures


def chat(url: str) -> None:
    with urllib.request.urlopen(url + "/v1/models", timeout=30) as answer:
        model = json.load(answer)["data"][0]["id"]
    messages = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "What is the capital of France?"},
    ]
    body = {"model": model, "messages": messages, "max_tokens": 8}
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(
        url + "/v1/chat/completions", json.dumps(body).encode(), headers
    )
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        answer.read()


def rss_mib(pid: int) -> float:
    return psutil.Process(pid).memory_info().rss / 2**20


def table(figures: dict[str, Any]) -> str:
    rows = []
    for name in ("gateway", "engine core"):
        of = figures[name]
        seconds = of["ready_seconds"]
        ready = f"{statistics.median(seconds):.2f}, {max(seconds):.2f}"
        rows.append([name, ready, f"{of['rss_ready_mib']:.0f}", f"{of['rss_after_mib']:.0f}"])
    head = ["process", "start to ready, s: median, worst", "RSS ready, MiB", "RSS after, MiB"]
    return markdown_table(head, rows)


if __name__ == "__main__":
    sys.exit(main())
