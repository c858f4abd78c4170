"""Records what the system answers, or compares it with what was recorded.

    python -m tests.recording --compare        says what differs, and leaves with 1 if anything does
    python -m tests.recording --record         writes the recording anew

The model's numbers differ between instruction sets, so a recording names its own; on another one,
what the model computed is compared by status, type and headers alone.
"""

from __future__ import annotations

import argparse
import json
import lzma
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from penstock_kernels.cpu import library
from testing.metrics_page import PORTS, port_of
from testing.serving import Server
from tests.recording import surface
from tests.recording.answers import shape
from tests.recording.asking import Stalled, ask
from tests.recording.case import GENERATE, POOL, Case
from tests.recording.cases import cases

PATH = Path(__file__).with_name("answers.json.xz")
MODELS = {GENERATE: (), POOL: ("all-minilm-l6-v2",)}
TIMEOUT = 120.0
"""Seconds for a page, or for a command."""
SHOWN = 20
"""Differences that are told in full."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.recording", description=__doc__)
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument("--compare", action="store_true")
    way.add_argument("--record", action="store_true")
    parser.add_argument("--concurrency", type=int, default=24)
    parser.add_argument("--only", default="", help="cases whose names hold this text")
    chosen = parser.parse_args()
    asked = [case for case in cases() if chosen.only in case.name]
    started = time.monotonic()
    try:
        found = observe(asked, chosen.concurrency)
    except Stalled as error:
        print(error)
        return 1
    print(f"{len(found['answers'])} requests, {time.monotonic() - started:.0f} s")
    if chosen.record:
        return write(found)
    return compare(read(), found, asked)


def observe(asked: list[Case], concurrency: int) -> dict[str, Any]:
    """Starts both servers one after the other, and asks each its cases at once. Raises Stalled."""
    answers: dict[str, Any] = {}
    metrics: dict[str, Any] = {}
    documents: dict[str, Any] = {}
    for name, arguments in MODELS.items():
        server = Server(*arguments, *PORTS)
        try:
            answers |= ask(server, [case for case in asked if case.server == name], concurrency)
            metrics[name] = pages(server)
            documents[name] = surface.without_prose(server.get("/openapi.json")[1])
        finally:
            server.close()
    table = subprocess.run(
        [sys.executable, "-m", "penstock", "config-table"],
        check=True,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    return {
        "instruction set": library.bits(),
        "answers": answers,
        "metrics": metrics,
        "openapi": documents,
        "flags": surface.flags(table.stdout),
        "messages": surface.messages(),
    }


def pages(server: Server) -> dict[str, list[str]]:
    """The names on the metrics page of each process."""
    urls = {
        "gateway": f"{server.url}/metrics",
        "engine": port_of(server, "engine"),
        "worker": port_of(server, "worker"),
    }
    found = {}
    for process, url in urls.items():
        page = url if url.endswith("/metrics") else f"{url}/metrics"
        with urllib.request.urlopen(page, timeout=TIMEOUT) as reply:
            found[process] = surface.metrics(reply.read().decode())
    return found


def write(found: dict[str, Any]) -> int:
    text = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    PATH.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    print(f"written: {PATH.name}, {PATH.stat().st_size} bytes, {found['instruction set']}")
    return 0


def read() -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads(lzma.decompress(PATH.read_bytes()))
    return recorded


def compare(recorded: dict[str, Any], found: dict[str, Any], asked: list[Case]) -> int:
    """Prints what differs. Order of fields counts."""
    same_numbers = recorded["instruction set"] == found["instruction set"]
    if not same_numbers:
        print(
            f"recorded with {recorded['instruction set']}, this is {found['instruction set']}: "
            "of what the model computed, status, type and headers are compared"
        )
    differing = []
    for case in asked:
        before, after = recorded["answers"].get(case.name), found["answers"][case.name]
        if before and case.computed and not same_numbers:
            before, after = shape(before), shape(after)
        if _text(before) != _text(after):
            differing.append((case.name, before, after))
    missing = set(recorded["answers"]) - {case.name for case in cases()}
    differing += [(name, recorded["answers"][name], None) for name in sorted(missing)]
    for part in ("metrics", "openapi", "flags", "messages"):
        before, after = recorded[part], found[part]
        if part == "openapi":
            before, after = (
                {name: surface.resolved(each) for name, each in documents.items()}
                for documents in (before, after)
            )
        if _text(before) != _text(after):
            differing.append((part, before, after))
    for name, before, after in differing[:SHOWN]:
        print(f"--- {name}")
        print(f"    before: {_around(before, after)}")
        print(f"    after:  {_around(after, before)}")
    print(f"{len(differing)} differ" if differing else "all equal")
    return 1 if differing else 0


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _around(value: Any, other: Any, width: int = 300) -> str:
    """The part of it where it begins to differ from the other."""
    ours, theirs = _text(value), _text(other)
    at = next(
        (at for at, (one, two) in enumerate(zip(ours, theirs, strict=False)) if one != two),
        min(len(ours), len(theirs)),
    )
    return ours[max(0, at - 80) : at + width]


if __name__ == "__main__":
    sys.exit(main())
