"""How long does a start take? Servers that take turns, each timed until it is ready and until its
first token: `python -m loadtest.starts`."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import httpx
import psutil

from deploy.local import answers, free_port, running
from loadtest.peers.servers import default_model, make_server
from loadtest.report import Document, Flags, Measurement, SetupError, machine_line, say, table

QUESTION = "What is the capital of France?"


def measure(flags: Flags) -> Document:
    """The files are in the page cache, and Python's are compiled, once
    the first start of each has passed, which doesn't count."""
    file = Path(flags.model)
    commands = {"penstock": [sys.executable, "-m", "penstock", "serve", flags.model]}
    if flags.earlier:
        commands["earlier"] = [flags.earlier, *commands["penstock"][1:]]
    if flags.llamacpp:
        server = make_server("llamacpp", file if file.is_file() else default_model())
        commands["llamacpp"] = server.command
    rows = []
    for turn in range(flags.starts + 1):
        for system, command in commands.items():
            row = {"system": system, **_start(command)}
            say(f"{system}: first token after {row['first_token_s']:.2f} s")
            rows += [row] if turn else []
    realtime = os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR)
    return {
        "model": f"starts of {file.name}",
        "starts": flags.starts,
        "realtime": realtime,
        "rows": rows,
    }


def _start(command: list[str]) -> Document:
    """Seconds until a server is ready, and until a first token asked for then; processor seconds
    of its processes until it was ready."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    ready = "/health/ready" if "penstock" in command else "/v1/models"
    with tempfile.TemporaryDirectory() as folder:
        log, begun = Path(folder) / "log", time.monotonic()
        # An empty value counts as none.
        settings = {"PYTHONDONTWRITEBYTECODE": ""}
        with running([*command, "--port", str(port)], log, settings) as process:
            while not answers(f"{url}{ready}"):
                if process.poll() is not None:
                    raise SetupError(log.read_text(errors="replace")[-500:])
                time.sleep(0.02)
            seconds, cpu = time.monotonic() - begun, _processor_seconds(process.pid)
            _first_token(url)
            first = time.monotonic() - begun
    return {"ready_s": seconds, "first_token_s": first, "cpu_s": cpu}


def _processor_seconds(pid: int) -> dict[str, float]:
    """Processor seconds by name: of the process with that id, and of those that it has started."""
    found: dict[str, float] = {}
    top = psutil.Process(pid)
    for process in (top, *top.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            _, named, title = process.cmdline()[0].rstrip().partition("penstock: ")
            name = "server" if process == top else title if named else "other"
            times = process.cpu_times()
            found[name] = found.get(name, 0.0) + times.user + times.system
    return found


def _first_token(url: str) -> None:
    """Returns when it has come."""
    with httpx.Client(base_url=url, timeout=60) as client:
        model = client.get("/v1/models").json()["data"][0]["id"]
        body = {
            "model": model,
            "messages": [{"role": "user", "content": QUESTION}],
            "temperature": 0,
            "max_tokens": 8,
            "stream": True,
        }
        with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            for line in answer.iter_lines():
                if re.search(r'"content": ?"[^"]', line):
                    return
    raise SetupError(f"{url} has answered without a token")


def markdown(document: Document) -> str:
    """A line for each system: medians."""
    lines = []
    for system in dict.fromkeys(row["system"] for row in document["rows"]):
        rows = [row for row in document["rows"] if row["system"] == system]
        names = dict.fromkeys(name for row in rows for name in row["cpu_s"])
        parts = {name: median(row["cpu_s"].get(name, 0.0) for row in rows) for name in names}
        lines.append(
            {
                "system": system,
                "ready": median(row["ready_s"] for row in rows),
                "first": median(row["first_token_s"] for row in rows),
                "cpu": median(sum(row["cpu_s"].values()) for row in rows),
                "parts": ", ".join(f"{name} {seconds:.2f}" for name, seconds in parts.items()),
            }
        )
    columns = {
        "system": "{system}",
        "ready, s": "{ready:.2f}",
        "first token, s": "{first:.2f}",
        "processor, s": "{cpu:.2f}",
        "of it": "{parts}",
    }
    how = "with real-time priority, as the machine has other work" if document["realtime"] else ""
    return (
        f"{machine_line(document)}\n\n{document['model']}: medians of {document['starts']} starts "
        f"each, in turn{how and f', {how}'}; processor seconds until it was ready.\n\n"
        f"{table(columns, lines)}\n"
    )


COMMAND = Measurement(
    "starts",
    __doc__,
    measure,
    markdown,
    {
        "--model": ("smollm2-135m", "that is served"),
        "--starts": (5, "starts of each server"),
        "--earlier": ("", "Python of another Penstock, whose starts are timed too"),
        "--llamacpp": (False, "times starts of llama.cpp's server too"),
    },
    head="# How long does a start take?\n\n`python -m loadtest.starts` says it of this machine.",
)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
