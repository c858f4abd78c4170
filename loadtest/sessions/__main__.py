"""What sessions cost that carry nothing: beats and status, memory, restarts.

    python -m loadtest.sessions                                # 1 to 256, both ways: 10 minutes
    python -m loadtest.sessions --counts 1 16 --seconds 5 --output FOLDER

One engine core (a process with a null worker) and many front ends; then one front end and many
engine cores.  The side of which there is one is a process of its own, or the only one in it; of the
other there are many in each process, as real clients, engine cores and sockets: 64 front ends, 32
engine cores, each in threads of its own.  Processor seconds are the one's, to the nanosecond.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from loadtest.report import Document, Flags, Measurement, percentile, say
from loadtest.sessions.children import (
    Child,
    ask_all,
    engine_cores,
    front_ends,
    processor_time,
    pss,
)
from loadtest.sessions.engine_cores import front
from loadtest.sessions.page import HEAD, draw, text
from penstock.net.listener import raise_file_limit
from penstock.prepare import prepare
from penstock.process.machine import version_of
from penstock_kernels.cpu.library import instruction_set
from testing.processes import MODEL, engine, front_end, worker


def measure(flags: Flags) -> Document:
    """A row for each number of sessions, both ways."""
    raise_file_limit()
    model = prepare(MODEL)
    rows: dict[str, list[dict[str, Any]]] = {"front_ends": [], "engine_cores": []}
    ways = {"front_ends": many_front_ends, "engine_cores": many_engine_cores}
    for way, measured in ways.items():
        for count in flags.counts:
            with tempfile.TemporaryDirectory(prefix="pst-") as folder:
                row = {"sessions": count, **measured(count, model, Path(folder), flags)}
            rows[way].append(row)
            say(f"{way}: {json.dumps(row)}")
    versions = {name: version_of(name) for name in ("pyzmq", "msgspec", "uvloop")}
    return {"seconds": flags.seconds, "versions": versions, "isa": instruction_set(), **rows}


def many_front_ends(count: int, model: Path, folder: Path, flags: Flags) -> dict[str, Any]:
    """One engine core; the figures are its own."""
    with (
        engine(folder, model, []) as core,
        worker(folder, model, 0.0),
        front_ends(model, [front_end(folder)], count, folder / "log") as children,
    ):
        ask_all(children, "connect")
        computed = processor_time(core.pid)
        rests = ask_all(children, "rest", flags.seconds)
        computed = processor_time(core.pid) - computed
        found = {
            **at_rest(rests, computed),
            "pss": pss(core.pid),
            **first_tokens(children[0], flags.requests),
        }
        ask_all(children, "watch")
        core.kill()
        core.start()
        backs = ask_all(children, "back")
        back = restarted(backs, processor_time(core.pid))
        return {**found, **back, "back_pss": pss(core.pid)}


def many_engine_cores(count: int, model: Path, folder: Path, flags: Flags) -> dict[str, Any]:
    """One front end; the figures are its own."""
    log = folder / "log"
    endpoints = [front(folder, number) for number in range(count)]
    with engine_cores(model, folder, count, log):
        with front_ends(model, endpoints, 1, log) as (child,):
            ask_all([child], "connect")
            rests = ask_all([child], "rest", flags.seconds)
            found = {
                **at_rest(rests, rests[0]["processor"]),
                "pss": rests[0]["pss"],
                **first_tokens(child, flags.requests),
            }
        with front_ends(model, endpoints, 1, log) as (child,):
            ask_all([child], "watch")
            computed = processor_time(child.process.pid)
            backs = ask_all([child], "connect")
            back = restarted(backs, processor_time(child.process.pid) - computed)
            return {**found, **back, "back_pss": pss(child.process.pid)}


def at_rest(rests: list[dict[str, Any]], computed: float) -> dict[str, float]:
    """Each second: processor seconds of the one, messages and bytes in both directions."""
    seconds = max(rest["seconds"] for rest in rests)
    counts = [rest["traffic"] for rest in rests]
    return {
        "processor": computed / seconds,
        "others_processor": sum(rest["processor"] for rest in rests) / seconds,
        "to_engines": sum(each["sent"] for each in counts) / seconds,
        "from_engines": sum(each["received"] for each in counts) / seconds,
        "bytes": sum(each["sent_bytes"] + each["received_bytes"] for each in counts) / seconds,
    }


def first_tokens(child: Child, count: int) -> dict[str, float]:
    """Milliseconds until the first token of requests that come one after the other."""
    (found,) = ask_all([child], "requests", count)
    latencies = found["latencies"]
    return {"first_ms": statistics.median(latencies), "first_p99_ms": percentile(latencies, 0.99)}


def restarted(backs: list[dict[str, Any]], computed: float) -> dict[str, float]:
    """What a restart of the one took until all are back."""
    moments = [moment for back in backs for moment in back["moments"]]
    counts = [back["traffic"] for back in backs]
    begun = min((back["begun"] for back in backs if "begun" in back), default=min(moments))
    return {
        "back_s": max(moments) - begun,
        "back_processor": computed,
        "back_bytes": sum(each["sent_bytes"] + each["received_bytes"] for each in counts),
    }


COMMAND = Measurement(
    "sessions",
    __doc__,
    measure,
    text,
    {
        "--counts": {"type": int, "nargs": "+", "default": [1, 4, 16, 64, 128, 256]},
        "--seconds": (20.0, "at rest"),
        "--requests": (200, "one after the other"),
    },
    draw=draw,
    head=HEAD,
    title=lambda run: f"as of {run['commit']}",
)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
