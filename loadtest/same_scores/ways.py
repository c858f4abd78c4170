"""The ways in which the same benchmark is run: how many requests are in flight, on which server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loadtest.peers.servers import RunningServer, installed, make_server
from loadtest.report import ROOT, Document, SetupError
from loadtest.same_scores.tasks import (
    CHOICES,
    WINDOW,
    tokenizer_of,
    write_tasks,
    write_tokenizer,
)
from penstock.prepare import prepare
from penstock.process.machine import usable_cores
from testing.serving import TITLE, Server

RUNNER = Path(__file__).with_name("runner.py")
BATCHES = Path(__file__).with_name("llamacpp_batches.py")


@dataclass(frozen=True)
class Way:
    """title: of the row.  at_once: requests in flight.  kills: whether the worker is killed
    meanwhile, once: what was in a step during two deaths is refused as their cause."""

    title: str
    at_once: int
    kills: bool = False


@dataclass(frozen=True)
class Served:
    """A server's flags, and the ways it is asked in, one after another: what was asked before is
    in its cache."""

    flags: tuple[str, ...]
    ways: tuple[Way, ...]


PLAIN = ("--speculative-config", "off")
OURS = (
    Served(
        PLAIN,
        (
            Way("1 at a time", 1),
            Way("8 at once, its cache warm", 8),
            Way("64 at once, its cache warm", 64),
        ),
    ),
    Served(PLAIN, (Way("started again, 64 at once, its worker killed", 64, kills=True),)),
    Served(
        ("--gateways", "2"),
        (
            Way("two gateways and drafts, 64 at once", 64),
            Way("the same again, drafts from earlier answers", 64),
        ),
    ),
)
THEIRS = (Way("1 at a time", 1), Way("8 at once", 8), Way("64 at once", 64))
LIBRARY = "as a library, all at once"


@dataclass(frozen=True)
class Harness:
    """lm-evaluation-harness in an environment of its own. limit: documents of each task; None:
    all."""

    python: Path
    limit: int | None

    def run(self, order: dict[str, Any], python: Path | None = None) -> Document:
        """Raises SetupError where it fails."""
        with tempfile.TemporaryDirectory(prefix="same-scores-") as folder:
            place, output = Path(folder) / "order.json", Path(folder) / "output.json"
            whole = {"limit": self.limit, "packages": None, "as_text": False, "url": "", **order}
            place.write_text(json.dumps({**whole, "window": WINDOW, "output": str(output)}))
            environment = {**os.environ, "HF_HOME": folder, "OPENAI_API_KEY": "none"}
            environment["PYTHONPATH"] = "" if python is None else str(ROOT)
            done = subprocess.run(
                [python or self.python, RUNNER, place],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise SetupError(f"lm_eval failed:\n{done.stderr[-4000:]}")
            found: Document = json.loads(output.read_text(encoding="utf-8"))
            return found

    def packages(self) -> str:
        """The folder that lm_eval is imported from."""
        code = "import sysconfig; print(sysconfig.get_path('purelib'))"
        done = subprocess.run([self.python, "-c", code], capture_output=True, text=True, check=True)
        return done.stdout.strip()


@contextmanager
def order_of(model: Path) -> Iterator[tuple[dict[str, Any], dict[str, list[str]]]]:
    """A folder with tasks and the model's tokenizer, in an order; and the tasks by endpoint."""
    with tempfile.TemporaryDirectory(prefix="same-scores-") as folder:
        write_tokenizer(prepare(str(model)), Path(folder))
        yield {"folder": folder}, write_tasks(Path(folder))


def ours(model: Path, harness: Harness) -> Iterator[tuple[str, Document]]:
    """Each way's title, and what was heard."""
    with order_of(model) as (asked, tasks):
        for served in OURS:
            with Server(str(model), *served.flags) as server:
                where = {**asked, "url": server.url, "model": server.model}
                for way in served.ways:
                    order = {**where, "at_once": way.at_once}
                    if not way.kills:
                        yield way.title, _both(harness, order, tasks)
                        continue
                    with _kills(server) as killed:
                        found = _both(harness, order, tasks)
                    yield way.title if killed else f"{way.title} too late", found
        library = {**asked, "model": str(model), "kind": "library", "tasks": tasks["completions"]}
        own = Path(sys.executable)
        yield LIBRARY, harness.run({**library, "packages": harness.packages()}, own)


def theirs(model: Path, harness: Harness, logs: Path) -> Iterator[tuple[str, Document]]:
    """llama-cpp-python's server, which takes prompts as text."""
    server = make_server("llamacpp", model)
    server = replace(server, command=[*server.command, "--logits_all", "true"])
    with order_of(model) as (order, tasks), RunningServer(server, logs / "llamacpp.log") as running:
        where = {**order, "url": running.url, "model": "m", "as_text": True}
        for way in THEIRS:
            yield way.title, _both(harness, {**where, "at_once": way.at_once}, tasks)


def batched(model: Path) -> Iterator[tuple[str, Document]]:
    """llama.cpp itself, asked for the choices' tokens."""
    tokenizer = tokenizer_of(prepare(str(model)))
    prompts = [
        tokenizer.encode(f"{begin} {choice}") for begin, *choices in CHOICES for choice in choices
    ]
    python = installed("llamacpp", "python")
    for way in THEIRS:
        command = [python, BATCHES, model, max(int(usable_cores()), 1), way.at_once]
        began = time.monotonic()
        done = subprocess.run(
            list(map(str, command)),
            input=json.dumps(prompts),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SetupError(f"llama.cpp failed:\n{done.stderr[-4000:]}")
        heard = {str(at): ["", each, []] for at, each in enumerate(json.loads(done.stdout))}
        seconds = time.monotonic() - began
        yield way.title, {"version": "", "scores": {}, "heard": heard, "seconds": seconds}


def _both(harness: Harness, order: dict[str, Any], tasks: dict[str, list[str]]) -> Document:
    """What both endpoints say together."""
    began = time.monotonic()
    parts = [harness.run({**order, "kind": kind, "tasks": own}) for kind, own in tasks.items()]
    return {
        "version": parts[0]["version"],
        "scores": {name: score for part in parts for name, score in part["scores"].items()},
        "heard": {key: told for part in parts for key, told in part["heard"].items()},
        "seconds": time.monotonic() - began,
    }


@contextmanager
def _kills(server: Server) -> Iterator[list[int]]:
    """Kills the server's worker while requests run; the list has it then."""
    over, killed = threading.Event(), list[int]()

    def kill() -> None:
        while not (killed or over.wait(0.1)):
            worker = server.children().get(f"{TITLE}worker 0")
            if worker and any(each["running"] for each in server.get("/status")[1]["engines"]):
                os.kill(worker, signal.SIGKILL)
                killed.append(worker)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()
