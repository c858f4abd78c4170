"""Memory and start-up time of a gateway and an engine core, the two processes without torch.

    python -m loadtest.process_footprint [--model M] [--repeat 5] [--requests 32] [--json FILE]

Start to ready is from starting the process until it is of use: an engine core that has welcomed a
front end; a gateway whose /health/ready says 200, with an engine core already running.  RSS is
what the kernel reports, when ready and after some chat requests.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from tqdm import tqdm

from penstock.client import EngineClient
from penstock.config.settings import EngineConfig, ModelSettings
from penstock.llm.launched_engine import LaunchedEngine
from penstock.prepare import prepare

PATIENCE = 120.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--repeat", type=int, default=5, help="starts of each process")
    parser.add_argument("--requests", type=int, default=32, help="chat requests before RSS again")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    figures = measure(arguments.model, arguments.repeat, arguments.requests)
    print(table(figures))
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


def measure(model: str, repeat: int, requests: int) -> dict[str, Any]:
    """Per process: start-to-ready seconds of each start, RSS in MiB ready and after requests."""
    model_dir = prepare(model)
    with tqdm(total=2 * repeat, desc="starts") as bar:
        engine: dict[str, Any] = {"ready_seconds": []}
        for _ in range(repeat):
            engine["ready_seconds"].append(asyncio.run(time_engine(model_dir)))
            bar.update()
        system = LaunchedEngine(EngineConfig(model=ModelSettings(model=model)))
        try:
            system.wait_ready(PATIENCE)
            engine_pid = child_of_ours("penstock: engine")
            engine["rss_ready_mib"] = rss_mib(engine_pid)
            gateway = time_gateways(system.endpoint, repeat, requests, bar)
            engine["rss_after_mib"] = rss_mib(engine_pid)
        finally:
            system.stop()
    return {"model": model, "requests": requests, "engine core": engine, "gateway": gateway}


async def time_engine(model_dir: Path) -> float:
    """Seconds from starting an engine core until it has welcomed a front end."""
    with tempfile.TemporaryDirectory(prefix="pst-") as folder:
        front, back = f"ipc://{folder}/front", f"ipc://{folder}/back"
        client = EngineClient(front, name="footprint")
        await client.start()
        command = ["engine", "--model-dir", str(model_dir)]
        command += ["--frontend-endpoint", front, "--worker-endpoint", back]
        begun = time.perf_counter()
        with running(command):
            try:
                await client.wait_connected(PATIENCE)
                return time.perf_counter() - begun
            finally:
                await client.close()


def time_gateways(endpoint: str, repeat: int, requests: int, bar: Any) -> dict[str, Any]:
    figures: dict[str, Any] = {"ready_seconds": []}
    for _ in range(repeat):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        begun = time.perf_counter()
        with running(["gateway", "--engine-endpoint", endpoint, "--port", str(port)]) as pid:
            while not answers(url + "/health/ready"):
                if time.perf_counter() - begun > PATIENCE:
                    raise TimeoutError("the gateway did not become ready")
                time.sleep(0.005)
            figures["ready_seconds"].append(time.perf_counter() - begun)
            figures["rss_ready_mib"] = rss_mib(pid)
            if len(figures["ready_seconds"]) == repeat:
                for _ in range(requests):
                    chat(url)
                figures["rss_after_mib"] = rss_mib(pid)
        bar.update()
    return figures


@contextlib.contextmanager
def running(command: list[str]) -> Iterator[int]:
    """Runs a penstock command; yields its pid; stops it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", *command],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.HTTPError, OSError):
        return False


def chat(url: str) -> None:
    with urllib.request.urlopen(url + "/v1/models", timeout=30) as answer:
        model = json.load(answer)["data"][0]["id"]
    body = {
        "model": model,
        "messages": [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": "What is the capital of France?"},
        ],
        "max_tokens": 8,
    }
    request = urllib.request.Request(
        url + "/v1/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        answer.read()


def child_of_ours(title: str) -> int:
    """The pid of the process below us that calls itself `title`."""
    for child in psutil.Process().children(recursive=True):
        if " ".join(child.cmdline()).strip() == title:
            return child.pid
    raise LookupError(f"no process called {title!r}")


def rss_mib(pid: int) -> float:
    return psutil.Process(pid).memory_info().rss / 2**20


def table(figures: dict[str, Any]) -> str:
    lines = [
        "| process | start to ready, s: median, worst | RSS ready, MiB | RSS after, MiB |",
        "|---|---|---|---|",
    ]
    for name in ("gateway", "engine core"):
        of = figures[name]
        seconds = of["ready_seconds"]
        lines.append(
            f"| {name} | {statistics.median(seconds):.2f}, {max(seconds):.2f} "
            f"| {of['rss_ready_mib']:.0f} | {of['rss_after_mib']:.0f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
