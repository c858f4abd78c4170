"""Starts a server of a model and says where the time until it is ready goes: `penstock doctor MODEL
--start`."""

from __future__ import annotations

import mmap
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import IO

import msgspec

from penstock.process.start_phases import MB, StartPhase
from penstock_worker.machine.environment_checks import Finding

PATIENCE = 600.0
"""Seconds that a start may take, and stopping after it."""
SAMPLE = 256 << 20
"""Bytes of a file that are read to see how fast its disk is, at most."""
PIECE = 4 << 20
SAMPLE_SECONDS = 1.0
TAIL = 2000
"""Characters of the log's end that are shown of a start that failed."""


class StartReport(msgspec.Struct, frozen=True):
    """What `penstock serve` says by its report pipe."""

    ready: bool = False
    error: str = ""
    start: dict[str, list[StartPhase]] = {}


def examine_start(model: str, flags: Sequence[str], files: Sequence[str]) -> list[Finding]:
    """Returns a finding for each phase of each process, and for the disk. flags: for `penstock
    serve`.  files: the weights', on whose disk it depends. Never raises."""
    report = _started(["serve", model, "--port", "0", "--log-level", "error", *flags])
    if not report.ready:
        return [Finding("start", False, report.error, "missing")]
    seconds = sum(phase.seconds for phase in report.start.get("supervisor", ()))
    found = [Finding("start", True, f"ready after {seconds:.2f} s", seconds=seconds)]
    for process, phases in report.start.items():
        found += [_phase(process, phase) for phase in phases]
    return [*found, _disk(files)]


def _phase(process: str, phase: StartPhase) -> Finding:
    said = f"{phase.seconds:5.2f} s, {phase.processor_seconds:5.2f} s of processors  {phase.name}"
    also = f": {phase.of_files}" if phase.of_files else ""
    return Finding(process, True, said + also, seconds=phase.seconds)


def _started(arguments: list[str]) -> StartReport:
    """Starts `penstock` with these arguments and stops it when it is ready."""
    reading, writing = os.pipe()
    with open(reading, "rb", buffering=0), tempfile.TemporaryFile() as log:
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "penstock", *arguments, "--report-fd", str(writing)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                pass_fds=[writing],
                start_new_session=True,
            )
        except OSError as error:
            return StartReport(error=f"can't start a process: {error.strerror}")
        finally:
            os.close(writing)
        try:
            return _read(reading, log)
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _read(reading: int, log: IO[bytes]) -> StartReport:
    deadline, line = time.monotonic() + PATIENCE, b""
    while not line.endswith(b"\n"):
        left = max(0.0, deadline - time.monotonic())
        if not select.select([reading], [], [], left)[0]:
            return StartReport(error=f"not ready within {PATIENCE:g} s")
        chunk = os.read(reading, 1 << 16)
        if not chunk:
            log.seek(0)
            said = log.read().decode(errors="replace")[-TAIL:].strip()
            return StartReport(error=f"the server ended before it was ready: {said}")
        line += chunk
    return msgspec.json.decode(line, type=StartReport)


def _disk(files: Sequence[str]) -> Finding:
    try:
        speed = disk_speed(max(files, key=os.path.getsize))
    except (OSError, ValueError) as error:
        return Finding("disk", True, f"how fast it is can't be measured here: {error}", "note")
    return Finding("disk", True, f"gives {speed / MB:,.0f} MB/s past the page cache")


def disk_speed(file: str) -> float:
    """Bytes a second of a file that the page cache has no part in. Raises OSError where the file
    system can't read past it, ValueError for a file that is smaller than a piece."""
    opened = os.open(file, os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, PIECE) as piece:  # Aligned, as such a read must be.
            begun, size = time.monotonic(), 0
            while size < SAMPLE and time.monotonic() - begun < SAMPLE_SECONDS:
                if os.preadv(opened, [piece], size) < PIECE:
                    break
                size += PIECE
            seconds = time.monotonic() - begun
    finally:
        os.close(opened)
    if not size:
        raise ValueError(f"{file} is too small")
    return size / seconds
