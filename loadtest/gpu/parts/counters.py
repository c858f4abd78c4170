"""What the processors' counters say of five kernels, by `ncu`: a profile says how long a kernel
takes, these why."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable

from loadtest.gpu.job import Job, OutOfTime
from loadtest.report import ROOT

SECTIONS = ("SpeedOfLight", "InstructionStats", "SchedulerStats", "LaunchStats", "Occupancy")
"""Sections, not metrics: a metric's name that a card doesn't have ends the program."""
SHOWN = {
    "Duration": "duration",
    "Memory Throughput": "memory",
    "DRAM Throughput": "dram",
    "Compute (SM) Throughput": "compute",
    "Executed Instructions": "instructions",
    "Issued Warp Per Scheduler": "issued",
    "Registers Per Thread": "registers",
    "Achieved Occupancy": "occupancy",
}
"""Names of the report's metrics, by ncu's. One with a unit of percent is given as that."""


def run(job: Job) -> None:
    command = [sys.executable, "-m", "loadtest.gpu.counted", *(["--dry"] if job.extent.dry else [])]
    ncu = shutil.which("ncu")
    if ncu is None:
        job.note("no ncu here: the kernels run without counters")
    else:
        sections = [word for name in SECTIONS for word in ("--section", name)]
        # Clocks stay as they are. Only what lies between the profiler's start and stop is counted.
        command = [
            *(ncu, "--clock-control", "none", "--profile-from-start", "off"),
            *("--csv", "--page", "details", *sections, *command),
        ]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | {"TMPDIR": str(job.work)},
            stdout=subprocess.PIPE,
            text=True,
            timeout=max(job.left - 2.0, 1.0),
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise OutOfTime from None
    sys.stderr.write(done.stdout)
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with status {done.returncode}; the log says more")
    if ncu is None:
        return
    found = kernels(done.stdout.splitlines())
    for each in found.values():
        job.row(what="counters", **each)
    if not found:
        raise RuntimeError("ncu counted no kernel; the log says why")


def kernels(lines: Iterable[str]) -> dict[str, dict[str, str]]:
    """Returns what SHOWN names of each kernel's launch, by ncu's number of it. lines: of `ncu
    --csv`, behind its own messages."""
    found: dict[str, dict[str, str]] = {}
    rows = [line for line in lines if line.startswith('"')]
    for row in csv.DictReader(rows):
        if (name := SHOWN.get(row.get("Metric Name", ""))) is None:
            continue
        unit = row["Metric Unit"]
        kernel = found.setdefault(row["ID"], {"kernel": row["Kernel Name"].partition("(")[0]})
        kernel.setdefault(name, f"{row['Metric Value']} {unit}".strip())
    return found
