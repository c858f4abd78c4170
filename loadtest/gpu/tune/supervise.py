"""Starts the processes that compile and the one that measures, starts the latter again where it
ends or stands still in a candidate's turn, and reports."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from loadtest.gpu.job import part_file
from loadtest.gpu.leaving import end_group, leave_at_signals, start_group
from loadtest.gpu.machine import asked_of_gpu, device, versions
from loadtest.gpu.report import TRIAL
from loadtest.gpu.tune import NAMES, advice
from loadtest.gpu.tune.ahead import compiled, over_file
from loadtest.gpu.tune.processes import Lines, lines_file, parser
from loadtest.gpu.tune.report import to_markdown
from loadtest.report.files import Report
from penstock.children import die_with_parent

REPORT_SECONDS = 8.0
STILL = 45.0
"""Seconds without a line, in a candidate's turn, after which the process is ended."""
STARTS = 6
"""Of the process that measures, at most."""
HOPPER = "9.0"


def main() -> int:
    """Exit status: 0, 1 where nothing was timed."""
    own = parser("supervise")
    own.add_argument("--output", type=Path, required=True)
    flags = own.parse_args()
    leave_at_signals()  # So that what runs is ended too.
    if flags.parent is not None:
        die_with_parent(flags.parent, signal.SIGTERM)
    try:
        return tune(flags)
    finally:
        # Who would have removed it is gone.
        if flags.parent not in (None, os.getppid()):
            shutil.rmtree(flags.work, ignore_errors=True)


def tune(flags: argparse.Namespace) -> int:
    """As `main`."""
    ends = time.monotonic() + flags.seconds - REPORT_SECONDS
    report = Report("tune", "-m loadtest.gpu.tune", flags, told(flags))
    flags.output.mkdir(parents=True, exist_ok=True)
    for suffix in ("json", "md", "log"):
        report.path(suffix).unlink(missing_ok=True)
    with report.path("log").open("ab") as log:
        Measuring(flags, ends, log).run()
    found = gathered(flags.work, Lines(lines_file(flags.work)).rows)
    document = report.facts(dry=flags.dry, device=device(), versions=versions(), **found)
    text = to_markdown(document)
    report.save(document, {}, text)
    print("\n".join([text, *advice.sentences(document), *([TRIAL] if flags.dry else [])]))
    return 0 if any(row["status"] == advice.TIMED for row in document["rows"]) else 1


class Measuring:
    """All processes of one run. log: an open file for what they say."""

    def __init__(self, flags: argparse.Namespace, ends: float, log: Any) -> None:
        self._flags = flags
        self._ends = ends
        self._log = log
        self._running: list[subprocess.Popen[bytes]] = []

    def run(self) -> None:
        """None of its processes is left."""
        try:
            ahead = [] if self._flags.dry else self._compilers()
            for _ in range(STARTS):
                if self._measure(ahead) or time.monotonic() >= self._ends:
                    return
        finally:
            for process in self._running:
                end_group(process)

    def _compilers(self) -> list[subprocess.Popen[bytes]]:
        """One for each core but one, which is for the process with the GPU."""
        # 90 for compute capability 9.0, which is also taken where nvidia-smi doesn't say.
        arch = (asked_of_gpu("compute_cap") or HOPPER).replace(".", "")
        # Nothing of a GPU is touched, and no time goes into starting its driver.
        without = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        cores = len(os.sched_getaffinity(0))
        return [self._start("ahead", ["--arch", arch], without) for _ in range(max(1, cores - 1))]

    def _measure(self, ahead: list[subprocess.Popen[bytes]]) -> bool:
        """Whether it came to its end."""
        process = self._start("sweep", ["--dry" if self._flags.dry else "--ahead"])
        while process.poll() is None:
            time.sleep(0.2)
            if ahead and all(each.poll() is not None for each in ahead):
                over_file(self._flags.work).parent.mkdir(parents=True, exist_ok=True)
                over_file(self._flags.work).touch()
            if self._stands_still() or time.monotonic() > self._ends:
                break
        status = process.poll()
        end_group(process)
        self._running.remove(process)
        return status == 0

    def _stands_still(self) -> bool:
        path = lines_file(self._flags.work)
        if not path.is_file() or time.time() - path.stat().st_mtime < STILL:
            return False
        last = path.read_text().splitlines()[-1]
        return not {"done", "candidates"} & json.loads(last).keys()

    def _start(
        self, module: str, options: list[str], changes: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        seconds = max(self._ends - time.monotonic(), 0)
        options += ["--work", str(self._flags.work), "--seconds", f"{seconds:.1f}"]
        options += ["--parent", str(os.getpid()), "--kernels", *self._flags.kernels]
        process = start_group(f"loadtest.gpu.tune.{module}", options, self._log, changes)
        self._running.append(process)
        return process


def gathered(work: Path, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """rows; changes: see `advice.changes`; candidates: how many there are; left_out: those that had
    no turn, in order; dropped: by setting, how many of them for its present choice's failure;
    parts: the machine's limits."""
    nothing: dict[str, Any] = {"candidates": [], "shared": {}}
    first = next((line for line in lines if "candidates" in line), nothing)
    everything: list[dict[str, Any]] = first["candidates"]
    done = {line["done"] for line in lines if "done" in line}
    rows = [line for line in lines if "status" in line]
    failed = {row["setting"] for row in advice.present_failures(rows)}
    left_out = [
        each | {"compiled": compiled(work, each["number"]) is not None}
        for each in everything
        if each["number"] not in done and each["setting"] not in failed
    ]
    tried = {row["number"] for row in rows}
    untried = Counter(each["setting"] for each in everything if each["number"] not in tried)
    path = part_file(work, "limits")
    return {
        "candidates": len(everything),
        "rows": rows,
        "changes": advice.changes(rows, first["shared"]),
        "dropped": {setting: untried[setting] for setting in sorted(failed)},
        "left_out": left_out,
        "parts": {"limits": json.loads(path.read_text())} if path.is_file() else {},
    }


def told(flags: argparse.Namespace) -> list[str]:
    """The arguments that a user would give."""
    chosen = ["--kernels", *flags.kernels] if tuple(flags.kernels) != NAMES else []
    return [*chosen, *(["--dry"] if flags.dry else [])]


if __name__ == "__main__":
    sys.exit(main())
