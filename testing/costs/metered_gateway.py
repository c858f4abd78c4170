"""A gateway process whose event loop is measured.

    python -m testing.costs.metered_gateway ENDPOINT DATA

Writes its port as the first line; then, for each line that it reads, what the longest turn since
the line before was, as JSON.  DATA: a folder for clients' files.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from pathlib import Path

import msgspec

from penstock.config.settings import GatewayConfig, StorageSettings
from penstock.net import listener
from penstock_gateway import process
from testing.costs.metered_loop import Meter, MeteredLoop, Turn, watch


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a gateway's loop did between two questions."""

    worst: Turn
    turns: int
    seconds: float
    """Processor time of all turns."""
    all_seconds: float
    """Processor time of the whole process, with its other threads."""
    resident: int
    """Bytes of memory, now."""
    most_resident: int
    """The same at most, since the last question."""


def main(endpoint: str, folder: str) -> None:
    config = GatewayConfig(port=0)
    sock = listener.bind(config.host, config.port)
    os.set_inheritable(sock.fileno(), True)
    print(sock.getsockname()[1], flush=True)
    process._loop_factory = lambda: _metered
    storage = StorageSettings(data_dir=folder, stored_response_hours=1)
    process.main(endpoint, config, fd=sock.detach(), storage=storage)


def _metered() -> asyncio.AbstractEventLoop:
    loop = MeteredLoop()
    watch(loop.meter)
    threading.Thread(target=_answer, args=(loop.meter,), name="answers", daemon=True).start()
    return loop


def _answer(meter: Meter) -> None:
    before = time.process_time()
    _forget_most()
    for _ in sys.stdin:
        worst, turns, seconds = meter.take()
        now = time.process_time()
        resident, most = _memory()
        report = Report(
            worst=worst,
            turns=turns,
            seconds=seconds,
            all_seconds=now - before,
            resident=resident,
            most_resident=most,
        )
        before = now
        _forget_most()
        sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
        sys.stdout.flush()
    os._exit(0)  # Whoever asked is gone.


def _memory() -> tuple[int, int]:
    fields = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("VmRSS", "VmHWM"):
            fields[name] = int(value.split()[0]) * 1024
    return fields["VmRSS"], fields["VmHWM"]


def _forget_most() -> None:
    """From now on, VmHWM is of what comes."""
    Path("/proc/self/clear_refs").write_text("5")


if __name__ == "__main__":
    main(*sys.argv[1:])
