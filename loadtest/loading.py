"""What loading a model takes: `python -m loadtest.loading --help`.

`penstock serve` is started with files in the page cache, and looked at until it is ready: when each
process is there, the processor time that it takes, and its memory. Private memory is what the
system calls RssAnon and RssShmem: pages that no file backs. Beside it stands a process that imports
torch and does nothing else.

With --before FOLDER, another checkout of Penstock, the two take turns.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from deploy.local import answers, free_port
from loadtest.report import ROOT, Document, Flags, Measurement, SetupError, machine_line, say, table
from penstock.prepare import load_manifest, prepare

MODEL = "smollm2-135m"
PAUSE = 0.02
"""Seconds between two looks. Peaks of the memory are the system's own where it keeps them."""
PATIENCE = 180.0
TITLES = ("supervisor", "prepare", "engine", "gateway", "worker")
MIB = 1 << 20
IMPORTS = "import torch, os, sys; print(flush=True); sys.stdin.read()"


@dataclass
class Seen:
    """A process of one start.

    begun: seconds from the command to the process.  cpu: seconds of processor time until ready.
    peak: MiB resident at most, by the system's count.  private: MiB of it that no file backs, at
    most.
    """

    begun: float
    cpu: float = 0.0
    peak: float = 0.0
    private: float = 0.0


def start_of(place: Path, model: str) -> dict[str, Any]:
    """One start of the checkout at `place`: seconds until ready, and each process."""
    port = free_port()
    command = [sys.executable, "-m", "penstock", "serve", model, "--port", str(port)]
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(
            command, env=environment(place), stdout=log, stderr=log, cwd=place
        ) as server,
    ):
        begun = time.monotonic()
        seen: dict[str, Seen] = {}
        with ThreadPoolExecutor(1) as asking:
            # The socket takes connections before there is a gateway to answer them.
            ready = asking.submit(_ready_at, f"http://127.0.0.1:{port}/health/ready", server, begun)
            while not ready.done():
                _look(server.pid, time.monotonic() - begun, seen)
                time.sleep(PAUSE)
            _look(server.pid, time.monotonic() - begun, seen)
        server.terminate()
        server.wait(60)
        if ready.result() is None:
            log.seek(0)
            raise SetupError(f"it didn't start:\n{log.read().decode()}")
    return {"ready": ready.result(), "processes": {name: asdict(one) for name, one in seen.items()}}


def _ready_at(url: str, server: subprocess.Popen[bytes], begun: float) -> float | None:
    """Seconds until it answers; None if it left, or takes too long."""
    while not answers(url):
        if server.poll() is not None or time.monotonic() - begun > PATIENCE:
            return None
        time.sleep(PAUSE)
    return time.monotonic() - begun


def environment(place: Path) -> dict[str, str]:
    paths = [str(place / name) for name in ("services", "shared", "kernels", ".")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"}


def torch_alone() -> dict[str, float]:
    """The same of a process that imports torch."""
    with subprocess.Popen(
        [sys.executable, "-c", IMPORTS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        begun = time.monotonic()
        process.stdout.readline()  # type: ignore[union-attr]
        seconds = time.monotonic() - begun
        status, times = _status(process.pid), psutil.Process(process.pid).cpu_times()
        process.stdin.close()  # type: ignore[union-attr]
    return {"seconds": seconds, "cpu": times.user + times.system, **status}


def _look(root: int, now: float, seen: dict[str, Seen]) -> None:
    for process in family(root):
        try:
            name = _role(process)
            times, status = process.cpu_times(), _status(process.pid)
        except (psutil.Error, OSError):
            continue  # it has ended
        if name in TITLES:
            one = seen.setdefault(name, Seen(now))
            one.cpu = times.user + times.system
            one.peak = max(one.peak, status["peak"])
            one.private = max(one.private, status["private"])


def family(root: int) -> list[psutil.Process]:
    """A process and all below it; none if it has ended."""
    try:
        parent = psutil.Process(root)
        return [parent, *parent.children(recursive=True)]
    except psutil.Error:
        return []


def _role(process: psutil.Process) -> str:
    """By its title, once it has one: `penstock: worker 0`."""
    words = " ".join(process.cmdline()).removeprefix("penstock: ").split()
    if "-m" in words:  # not yet
        words = words[words.index("-m") + 2 :]
    return "supervisor" if words[:1] == ["serve"] else (words or [""])[0]


def _status(pid: int) -> dict[str, float]:
    """MiB: resident at most, and private now."""
    found: dict[str, float] = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("VmHWM", "RssAnon", "RssShmem"):
            found[name] = int(value.split()[0]) / 1024
    private = found.get("RssAnon", 0.0) + found.get("RssShmem", 0.0)
    return {"peak": found.get("VmHWM", 0.0), "private": private}


OF_STARTS = {"begun": statistics.median, "cpu": statistics.median, "peak": max, "private": max}
"""What is told of each figure of several starts."""


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    rows = {}
    for name in TITLES:
        each = [run["processes"][name] for run in runs if name in run["processes"]]
        if each:
            rows[name] = {
                field: of([one[field] for one in each]) for field, of in OF_STARTS.items()
            }
    return {
        "ready": statistics.median(run["ready"] for run in runs),
        "fastest": min(run["ready"] for run in runs),
        "cpu": sum(row["cpu"] for row in rows.values()),
        "processes": rows,
    }


def measure(flags: Flags) -> Document:
    """Starts of both checkouts in turn, and a process that imports torch."""
    model, load = flags.model, os.getloadavg()[0]
    places = {"now": ROOT, **({"before": flags.before.resolve()} if flags.before else {})}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in places}
    for number in range(flags.rounds + 1):
        for name, place in places.items():
            run = start_of(place, model)
            say(f"{name}: ready after {run['ready']:.2f} s")
            if number:  # the first fills the page cache, and prepares the model
                runs[name].append(run)
    files = load_manifest(prepare(model)).weights.files
    weights = sum(Path(file).stat().st_size for file in files) / MIB
    return {
        "model": model,
        "load": load,
        "weights_mib": weights,
        "torch_alone": torch_alone(),
        "results": {name: summary(each) for name, each in runs.items()},
        "runs": runs,
    }


def text(found: Document) -> str:
    alone, weights = found["torch_alone"], found["weights_mib"]
    parts = [
        f"{machine_line(found)}\n\n{found['model']}, {weights:.0f} MiB of weights, in the page "
        f"cache. Other work on the machine: a load of {found['load']:.1f} when it began.\n"
    ]
    columns = {
        "process": "{name}",
        "begun after": "{begun:.2f} s",
        "processor time": "{cpu:.2f} s",
        "resident at most": "{peak:.0f} MiB",
        "of it private": "{private:.0f} MiB",
    }
    for name, one in found["results"].items():
        rows = [{"name": title, **row} for title, row in one["processes"].items()]
        worker = one["processes"].get("worker", {"private": 0.0})
        parts.append(
            f"\n{name}: ready after {one['ready']:.2f} s (fastest {one['fastest']:.2f} s) and "
            f"{one['cpu']:.2f} s of processor time. The worker's private memory is the weights and "
            f"{worker['private'] - weights:.0f} MiB.\n\n{table(columns, rows)}\n"
        )
    parts.append(
        f"\n`import torch` alone: {alone['cpu']:.2f} s of processor time, {alone['peak']:.0f} MiB "
        f"resident, {alone['private']:.0f} MiB of it private.\n"
    )
    return "".join(parts)


FLAGS = {
    "--model": {"default": MODEL},
    "--rounds": (5, ""),
    "--before": {"type": Path, "metavar": "FOLDER", "help": "another checkout"},
}
COMMAND = Measurement("loading", __doc__, measure, text, FLAGS)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
